// The capture that records what a queue is given.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

namespace vdev {

class Capture;

/// Holds the capture of a queue, if there is one. Thread-safe.
class CaptureSlot {
 public:
  /// Returns the capture, or null.
  std::shared_ptr<Capture> get() const;
  /// Returns whether there is a capture. Relaxed, because the capture itself is read under the lock.
  bool taken() const { return taken_.load(std::memory_order_relaxed); }
  /// Returns false if there is a capture already.
  bool begin(std::shared_ptr<Capture> capture);
  void end();

 private:
  mutable std::mutex mutex_;  // guards capture_, and is the last one that a thread takes
  std::shared_ptr<Capture> capture_;
  std::atomic<bool> taken_{false};  // spares queues without a capture the lock
};

}  // namespace vdev
