// How a communicator fails: one rank's failure reaches all ranks, and ends their waits.
#pragma once

#include <functional>
#include <string>

#include "transport/state/group.hpp"
#include "transport/state/recorded_failure.hpp"

namespace vccl {

/// Records the communicator's first failure for every rank of this host, wakes those that sleep, and sends
/// the failure to other hosts. Any thread may call any member at any time, except for the two groups below
/// that say otherwise. A part of the communicator that only has to notice a failure holds this as const.
class FailureChannel {
 public:
  /// The control memory of the group's host must be mapped.
  explicit FailureChannel(const Group& group) : group_(group), failure_(group.host.failure()) {}

  bool happened() const noexcept { return failure_.happened(); }
  /// Returns the failure. Call this only after happened() has returned true.
  Error error() const { return failure_.error(); }
  /// Throws the failure if there is one.
  void check() const {
    if (happened()) throw error();
  }

  /// Records a failure for every rank of this host and wakes all of them. Only the first failure counts.
  void fail(ErrorCode code, const std::string& what) noexcept;
  /// Calls fail() because a peer has left or died, as `what` says. Ranks that died are why other ranks leave,
  /// so the text names the dead ranks as well, whichever rank was waited for. If another host has told of a
  /// failure that was not read yet, that is why the peer has left, and counts.
  void fail_for_end(ErrorCode code, const std::string& what) noexcept;
  /// Calls fail(), and then throws the first failure.
  [[noreturn]] void raise(ErrorCode code, const std::string& what);
  [[noreturn]] void raise_for_end(ErrorCode code, const std::string& what);
  /// Calls raise() for a thread that was interrupted `by` a signal. `wait` completes "while it waited for
  /// ...".
  [[noreturn]] void raise_interrupted(const std::string& by, const std::string& wait);

  /// Returns "rank 3 left group G", with the reason that the rank gave, if any.
  std::string left_text(int rank, const std::string& reason) const;
  /// Returns the same text for the rank at `index` of this host, with the reason that it gave there.
  std::string left_text_of_index(int index) const;

  // Only the owner of the current operation may call the next three members. Its waits look here for
  // failures that are not in the record yet.

  /// Receives what other hosts have sent, and records the failure if there is one among it.
  void receive() const;
  /// While the communicator is being made: throws why its meeting cannot succeed, if that is known.
  void check_meeting() const;
  /// While the communicator is being made, and a peer has ended: waits a moment for the reason, and throws
  /// it.
  void await_reason() const;

  // Only the thread that makes the communicator may call the next two members, before the communicator is
  // made.

  /// Sets what the links to other hosts do: `receive` for receive(), `listen`, which records a failure
  /// that another host has told unless an operation is under way, and `spread`, which sends the failure on.
  /// The last two may be called on any thread.
  void set_links(std::function<void()> receive, std::function<void()> listen, std::function<void()> spread);
  /// Sets what waits do while the communicator is being made: `look` for check_meeting(), and
  /// `look_for_reason` for await_reason(). Both are null once the communicator is made.
  void set_meeting(std::function<void()> look, std::function<void()> look_for_reason);

 private:
  const Group& group_;
  RecordedFailure failure_;
  std::function<void()> receive_, listen_, spread_;          // empty if there are no links to other hosts
  std::function<void()> look_at_meeting_, look_for_reason_;  // empty once the communicator is made
};

}  // namespace vccl
