// The door of a host's leader, where ranks of the host and strangers come while the hand-over lasts.
#pragma once

#include <functional>
#include <list>
#include <string>

#include "transport/bootstrap/unix_socket.hpp"

namespace vccl {

/// A process of this user that has connected.
struct Guest {
  Channel channel;
  int rank = -1;  // what the guest says that it is, or -1 before it has said so
};

/// A leader's listener, and the guests that have not become members of the host group yet. They are held at
/// once, so a guest that says nothing keeps nobody waiting.
class Door {
 public:
  /// `ranks` is the number of ranks that may come. `hear` is called for a guest that has sent something or
  /// hung up, and returns whether it stays a guest. The listener must outlive the door.
  Door(Listener& listener, std::size_t ranks, std::function<bool(Guest&)> hear)
      : listener_(listener), ranks_(ranks), hear_(std::move(hear)) {}

  /// Blocks until somebody has connected or a guest can be heard, at most until `until`. Closes connections
  /// of other users, and hears all guests. Returns how soon to call this again, so that strangers cannot keep
  /// ranks out. Throws Error(aborted) if the thread is interrupted, and what `hear` throws.
  Milliseconds attend(const Deadline& until);

  std::list<Guest>& guests() { return guests_; }
  /// Completes the text of an error about a rank that did not come, for the door of `leader`, which is a
  /// RankNames::rank(): "..., and rank 0 closed 2 connections of other users". It is empty if there were
  /// none.
  std::string complaint(const std::string& leader) const;

 private:
  Listener& listener_;
  std::size_t ranks_;
  std::function<bool(Guest&)> hear_;
  std::list<Guest> guests_;  // as they came
};

}  // namespace vccl
