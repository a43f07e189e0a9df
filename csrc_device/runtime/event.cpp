#include "csrc_device/runtime/event.hpp"

#include "csrc_device/runtime/queue.hpp"

namespace vdev {

bool Event::reached() const {
  if (!completion_ || completion_->reached()) return true;
  completion_->queue->nudge();
  return false;
}

void Event::wait() const {
  if (completion_ && !completion_->reached()) completion_->queue->help_until(completion_->sequence);
}

void Event::synchronize() const {
  const std::uint64_t epoch = error_epoch();
  wait();
  raise_error();
  if (completion_) raise_failure(*completion_, epoch);
}

void Event::raise_error() const {
  if (completion_ && completion_->reached() && completion_->error && completion_->error->claim())
    std::rethrow_exception(completion_->error->error);
}

bool Event::wait_for(std::int64_t nanoseconds) const {
  return !completion_ || completion_->reached() ||
         completion_->queue->wait_until(completion_->sequence, nanoseconds);
}

std::exception_ptr Event::error() const {
  if (!completion_ || !completion_->reached() || !completion_->error) return nullptr;
  return completion_->error->error;
}

std::int64_t Event::time_ns() const {
  return completion_ ? completion_->reached_at.load(std::memory_order_acquire) : 0;
}

}  // namespace vdev
