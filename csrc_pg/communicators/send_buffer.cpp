#include "csrc_pg/communicators/send_buffer.hpp"

#include <algorithm>

namespace vccl {

std::size_t SendBuffer::steps_of(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + kStepBytes - 1) / kStepBytes);
}

void SendBuffer::add(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  steps_ += steps_of(bytes);
}

void SendBuffer::received(std::size_t bytes) {
  std::vector<std::function<void()>> fit;
  {
    const std::lock_guard lock(mutex_);
    steps_ -= steps_of(bytes);
    if (steps_ <= kSteps && !failed_) fit.swap(waiting_);
  }
  for (const auto& function : fit) function();
}

// A copy that has failed has left no room. The sends that wait for room end with their own failures.
void SendBuffer::failed() {
  std::vector<std::function<void()>> waiting;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  failed_ = true;
  waiting.swap(waiting_);
}

void SendBuffer::when_it_fits(std::function<void()> fits) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    if (steps_ > kSteps) {
      waiting_.push_back(std::move(fits));
      return;
    }
  }
  fits();
}

}  // namespace vccl
