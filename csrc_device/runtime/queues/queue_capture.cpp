// What a queue does while it is captured.
#include <utility>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

std::shared_ptr<Capture> Queue::capture() const {
  if (!captured_.load(std::memory_order_relaxed)) [[likely]] {
    return nullptr;
  }
  Lock lock(mutex_);
  return capture_;
}

bool Queue::begin_capture(std::shared_ptr<Capture> capture) {
  Lock lock(mutex_);
  if (capture_) return false;
  capture_ = std::move(capture);
  captured_.store(true, std::memory_order_relaxed);
  return true;
}

void Queue::end_capture() {
  std::shared_ptr<Capture> ended;  // destroyed without the lock
  Lock lock(mutex_);
  ended = std::exchange(capture_, nullptr);
  captured_.store(false, std::memory_order_relaxed);
  lock.unlock();
}

/// Waits for `point` in the capture of the point or of this queue. Returns false if the queue is not captured
/// any more, and the point is an ordinary one.
bool Queue::wait_in_capture(const Completion& point) {
  const auto capturing = capture();
  if (!point.captured) {
    if (!capturing) return false;
    constexpr const char* text =
        "dependency created on uncaptured work in another stream: a stream that is capturing cannot wait for "
        "an "
        "event that was recorded outside of the capture";
    capturing->invalidate(text);
    throw Error(text);
  }
  const auto& theirs = point.captured->capture;
  if (capturing && capturing != theirs) {
    constexpr const char* text = "operation would result in a merge of separate capture sequences";
    capturing->invalidate(text);
    theirs->invalidate(text);
    throw Error(text);
  }
  if (!capturing || !capturing->wait(*this, *point.captured))
    theirs->join(shared_from_this(), *point.captured);
  return true;
}

}  // namespace vdev
