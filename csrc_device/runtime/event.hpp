// Points in a stream's queue that others can wait for.
#pragma once

#include <cstdint>
#include <memory>

namespace vdev {

class Failure;
class Stream;
struct Completion;  // the shared state of one recorded point (queues/completion.hpp)

/// An Event is a copyable handle to one recorded point of a stream. A default-made Event was never recorded
/// and counts as reached. An Event does not keep the stream alive; when the stream is gone, all its points
/// are reached. An Event that was recorded while its stream was captured is a place in a graph. Streams may
/// wait for it during the capture; reached() and the waits of the host throw CardError. Thread-safe.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}

  bool recorded() const { return completion_ != nullptr; }
  /// Returns true for a place in a graph.
  bool captured() const;
  /// Returns true once every task before the point has run. Never blocks.
  bool reached() const;
  /// Returns reached(), but raises the first failure of the stream before a reached point that stands.
  bool query() const;
  /// Blocks until the point is reached. If no worker runs the stream's queued tasks, the caller runs them
  /// itself. Does not raise the failures of the stream. Throws CardError inside a task
  /// of the same stream. Raises the interruption of the calling thread (interruption.hpp).
  void wait() const;
  /// Does what wait() does, then raises the first failure of the stream before the point that stands.
  void synchronize() const;
  /// Blocks until the point is reached, and returns true then. Returns false after `nanoseconds`, or when the
  /// calling thread is interrupted; the interruption is not raised and stays pending. Runs no queued tasks,
  /// because a task could take longer than `nanoseconds`.
  bool wait_for(std::int64_t nanoseconds) const;
  /// Returns the first failure of the stream before this point that stands, or null. The result is valid once
  /// the point is reached.
  std::shared_ptr<Failure> failure() const;
  /// Returns the time of the monotonic clock, in nanoseconds, at which the point was reached, or 0 before
  /// that.
  std::int64_t time_ns() const;

  const std::shared_ptr<Completion>& completion() const { return completion_; }

 private:
  std::shared_ptr<Completion> completion_;
};

}  // namespace vdev
