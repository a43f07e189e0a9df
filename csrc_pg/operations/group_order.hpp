// In which order this process uses its groups, for VCCL_CHECK=order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vccl {

/// Counts the collectives of one group on this rank, and knows the groups that contain it.
///
/// Two ranks use groups in the same order if, at each collective of a group, both have called the same number
/// of collectives of every other group that both belong to. A group compares this for the groups that have
/// all its ranks, because all its ranks know those.
///
/// Groups are known by their names and ranks, which are the same on every rank. A group that was destroyed
/// still counts, because the other ranks may destroy it later. Thread-safe.
class GroupOrder {
 public:
  /// `ranks` are the numbers in the job. `makes_new_job` says that the groups before belong to an earlier
  /// job, as init_process_group() does: they count no more.
  GroupOrder(std::string name, std::vector<std::uint64_t> ranks, bool makes_new_job);

  /// Counts a collective and returns a number that is the same on all ranks of the group if they have called
  /// the same number of collectives of each containing group before. The number is not 0.
  std::uint32_t next();
  /// Call this when the group has failed: its ranks may have called different numbers of its collectives.
  void leave_out() noexcept;

 private:
  struct Member;
  struct Members;

  const std::shared_ptr<Member> own_;
};

}  // namespace vccl
