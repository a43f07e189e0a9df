// Numbers the meetings of a group, and finds out if two processes want to be the same rank.
#pragma once

#include <cstdint>
#include <string>

#include "transport/communicator.hpp"

namespace vccl {

/// A rank's place in a meeting.
///
/// A store outlives groups (under torchrun it lives as long as the job), so a group that is made again must
/// not read the keys of its predecessor. Every rank counts, in the store, the meetings of a kind that it has
/// begun. The n-th meeting of one rank belongs with the n-th of every other rank, and n is part of the keys.
/// Beside the number stands which process claims to be the rank. The process of a second job that uses the
/// same store is not taken for the next meeting of the first job.
///
/// While the object lives, other processes of this user on this machine can see that the claim is in use.
class Claim {
 public:
  /// Claims the place of config.rank in the next meeting of `kind`. Costs one use of the store, and one more
  /// if the rank has claimed a place before. Throws Error(mismatch) if another process claims to be the rank
  /// and still takes part; that process's meeting fails with the same error. If the system lacks what a claim
  /// needs, this rank's meeting fails on all ranks with the Error(system) that is thrown.
  Claim(Store& store, const std::string& kind, const CommunicatorConfig& config);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// Returns the beginning of the meeting's keys: "cpu/3/".
  const std::string& prefix() const { return prefix_; }

 private:
  void* mark_ = nullptr;  // a page whose name in /proc/<pid>/maps shows that the claim is in use
  std::string prefix_;
};

/// Throws the Error(mismatch) that a rank has left in a meeting because it makes another group under the same
/// prefix. The rank may have come after the meeting succeeded. `meeting` has the keys of the meeting.
void check_identity(Store& meeting, const CommunicatorConfig& config);

}  // namespace vccl
