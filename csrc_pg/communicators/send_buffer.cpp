#include "csrc_pg/communicators/send_buffer.hpp"

namespace vccl {

void SendBuffer::add(std::size_t bytes) {
  under_way_->add(1);
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
}

void SendBuffer::remove(std::size_t bytes) {
  std::vector<std::function<void()>> fit;
  {
    const std::lock_guard lock(mutex_);
    bytes_ -= bytes;
    if (bytes_ <= kBytes) fit.swap(waiting_);
  }
  for (const auto& function : fit) function();
  under_way_->add(-1);
}

void SendBuffer::when_it_fits(std::function<void()> fits) {
  {
    const std::lock_guard lock(mutex_);
    if (bytes_ > kBytes) {
      waiting_.push_back(std::move(fits));
      return;
    }
  }
  fits();
}

}  // namespace vccl
