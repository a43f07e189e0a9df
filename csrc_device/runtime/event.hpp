// Points in a stream's queue that others can wait for.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>

namespace vdev {

class Stream;
struct Completion;  // shared state of one recorded point, defined in queue.hpp

/// A copyable handle to one recorded point of a stream; a default-made Event was never recorded and counts as
/// reached. Thread-safe. Keeps no stream alive: the stream may be gone, its points are then reached.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}

  bool recorded() const { return completion_ != nullptr; }
  /// True once every task before the point has run. Never blocks.
  bool reached() const;
  /// Blocks until reached; the caller runs the stream's queued tasks itself where no worker is at them.
  /// Does not raise the stream's error: see error(). Throws Error inside a task of that stream itself.
  void wait() const;
  /// wait(), then raises what went wrong on the stream before the point, if nobody has raised it yet.
  void synchronize() const;
  /// Gives up after `nanoseconds`; true when reached. Does not help: a task taken on could last longer.
  bool wait_for(std::int64_t nanoseconds) const;
  /// What went wrong on the stream before this point, or null. Valid once reached.
  std::exception_ptr error() const;
  /// Nanoseconds of the monotonic clock at which the point was reached; 0 before.
  std::int64_t time_ns() const;

  const std::shared_ptr<Completion>& completion() const { return completion_; }

 private:
  std::shared_ptr<Completion> completion_;
};

}  // namespace vdev
