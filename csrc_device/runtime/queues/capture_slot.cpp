#include "csrc_device/runtime/queues/capture_slot.hpp"

#include <utility>

namespace vdev {

std::shared_ptr<Capture> CaptureSlot::get() const {
  if (!taken()) [[likely]] {
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  return capture_;
}

bool CaptureSlot::begin(std::shared_ptr<Capture> capture) {
  std::lock_guard lock(mutex_);
  if (capture_) return false;
  capture_ = std::move(capture);
  taken_.store(true, std::memory_order_relaxed);
  return true;
}

void CaptureSlot::end() {
  std::shared_ptr<Capture> ended;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  ended = std::exchange(capture_, nullptr);
  taken_.store(false, std::memory_order_relaxed);
}

}  // namespace vdev
