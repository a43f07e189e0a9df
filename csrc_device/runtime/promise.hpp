// A point that is reached when somebody says so, rather than by a stream.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "csrc_device/runtime/event.hpp"

namespace vdev {

class Queue;

/// What completes outside of any stream (a message from another process) and is waited for like a point of
/// one: Event::wait, Event::wait_for and Stream::wait work on event() unchanged, and streams that wait for it
/// inherit the error. No thread. Thread-safe.
class Promise {
 public:
  /// `name`: for messages.
  explicit Promise(std::string name);
  /// An event that was never fulfilled is reached with an Error that says so: nobody may wait for ever.
  ~Promise();
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  const Event& event() const { return event_; }
  /// Reaches event(), with an error unless it is null. The first call counts. Publishes what the caller has
  /// written to whoever sees the event reached. In a forked child of the process that made it, it does
  /// nothing.
  void fulfil(std::exception_ptr error) noexcept;

 private:
  // Its run token is held from the start, so that nobody else ever runs it, and given back by fulfil().
  std::shared_ptr<Queue> queue_;
  Event event_;
};

}  // namespace vdev
