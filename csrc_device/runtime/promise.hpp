// A point that is reached when a caller fulfils it, and not when a stream has come to it.
#pragma once

#include <memory>
#include <string>

#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/failure.hpp"

namespace vdev {

class Interruptible;
class Queue;

/// Represents an operation that completes outside of any stream, such as a message from another process.
/// Event::wait(), Event::wait_for() and Stream::wait() work on event() as on a point of a stream, and a
/// stream that waits for it inherits its failure. A promise has no thread. Thread-safe.
class Promise {
 public:
  /// Says whether the search for deadlocks finds out by itself what will fulfil the promise, as it does for
  /// messages (DeadlockWatch). Otherwise the promise may be fulfilled at any time, and nothing that waits for
  /// it counts as standing still.
  enum class Fulfiller { is_unknown, is_watched };

  /// `name` is for messages.
  explicit Promise(std::string name, Fulfiller fulfiller = Fulfiller::is_unknown);
  /// Reaches event() with a failure if the promise was not fulfilled, so that nobody waits for ever.
  ~Promise();
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  /// Names the object that makes the event come soon when a thread that waits for it is interrupted.
  void add_interruptible(const std::shared_ptr<Interruptible>& user);

  const Event& event() const { return event_; }
  /// Reaches event() with a failure, which may be null. Only the first call counts. All writes of the caller
  /// before the call are visible to every thread that sees the event reached. Does nothing in a forked child
  /// of the process that made the promise.
  void fulfil(FailurePtr failure) noexcept;

 private:
  // The promise holds the queue's run token from the start, so that no thread ever runs the queue. fulfil()
  // gives the token back.
  std::shared_ptr<Queue> queue_;
  Event event_;
};

}  // namespace vdev
