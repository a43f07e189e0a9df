// The meeting of two ranks before their first message.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc_pg/communicators/message_lane.hpp"
#include "transport/messages.hpp"
#include "transport/rank_names.hpp"

namespace vccl {

/// Lets two ranks meet before their first message, as NCCL does, which makes a communicator of the two then.
/// So a rank that sends to one that waits for something else from it first hangs, and so does a ring of ranks
/// that all call isend() before irecv(). Thread-safe.
class PairMeetings {
 public:
  PairMeetings(const RankNames& names, int rank) : names_(names), rank_(rank) {}

  /// Blocks until `peer` has come to its first message with this rank, too. Later calls for the peer return
  /// at once, and so does one for this rank itself. Raises DistBackendError when `timeout` is over, when the
  /// peer or the group ends, when the ranks wait for each other, and if both ranks use the same card, which
  /// fails the group. An interruption of the thread aborts the group.
  void meet(MessageLane& lane, int peer, Milliseconds timeout);

 private:
  struct Meeting;
  /// Returns the meeting with `peer`, and whether the caller is the first, who has to greet.
  std::pair<std::shared_ptr<Meeting>, bool> enter(MessageLane& lane, int peer);
  static void greet(Messages& messages, int peer, const std::shared_ptr<Meeting>& meeting,
                    const Deadline& deadline);

  const RankNames& names_;
  const int rank_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Meeting>> meetings_;  // by peer, guarded by mutex_
};

}  // namespace vccl
