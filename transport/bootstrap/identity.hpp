// What a meeting is a meeting of, so that ranks that make different groups under one key find out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/communicator.hpp"
#include "transport/msgpack.hpp"

namespace vccl {

/// The call that makes a group, as one rank made it. All ranks that meet under one prefix of a store must
/// have made the same call.
struct MeetingIdentity {
  // See CommunicatorConfig::call. Behind a comma stand settings that the ranks must have in common:
  // "new_group, VCCL_STRICT=nccl".
  std::string call;
  std::vector<std::uint64_t> ranks;  // the global ranks of the members, in the group's order
  std::string group;                 // the name of the group, for texts
  std::uint64_t rank = 0;            // the global rank that made the call, for texts

  static MeetingIdentity of(const CommunicatorConfig& config);
  bool alone() const { return ranks.size() == 1; }
  bool same_meeting(const MeetingIdentity& other) const { return call == other.call && ranks == other.ranks; }
  /// Returns whether the two calls must not have been made under one key. A group of one rank meets nobody,
  /// so it contradicts only a group that waits for its rank. Torch makes such groups under the same key when
  /// ranks divide different subgroups.
  bool contradicts(const MeetingIdentity& other) const;
};

/// Encode the calls that ranks have made under one key, and read them.
std::string encoded_identities(const std::vector<MeetingIdentity>& identities);
std::vector<MeetingIdentity> decoded_identities(const msgpack::Value& record);

/// Returns the error of the rank that made the call `own` and finds that another rank made `other` under the
/// same key. The text gives both calls and says what to do.
Error contradiction(const MeetingIdentity& own, const MeetingIdentity& other);

/// Encode lists of ranks, and read them.
msgpack::Array encoded_lists(const std::vector<std::vector<std::uint64_t>>& lists);
std::vector<std::vector<std::uint64_t>> decoded_lists(const msgpack::Value& value);

/// Tells ranks of a job that wait in other meetings of a contradiction that concerns them.
class NoticeBoard {
 public:
  /// `store` is the job's, and may be null: then there is no board. It must outlive the board.
  explicit NoticeBoard(Store* store) : store_(store) {}

  /// Leaves the error for every rank of the lists. Errors of the store are ignored: the ranks then wait for
  /// their timeouts.
  void post(const Error& error, const std::vector<std::vector<std::uint64_t>>& lists) noexcept;
  /// Throws an error that was left for global rank `rank` if it concerns a meeting of `ranks`. Throws each
  /// error once in a process, because the group that it concerned may be made again.
  void check(std::uint64_t rank, const std::vector<std::uint64_t>& ranks);

 private:
  Store* store_;
};

}  // namespace vccl
