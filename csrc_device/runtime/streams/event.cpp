#include "csrc_device/runtime/event.hpp"

#include <string>

#include "base/schedule.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

namespace {

void refuse_captured_point(const std::shared_ptr<Completion>& point, const char* what) {
  if (!point || !point->captured) [[likely]] {
    return;
  }
  const std::string text =
      base::text("operation not permitted on an event last recorded in a capturing stream: ", what);
  point->captured->capture->invalidate(text);
  throw CardError(text);
}

}  // namespace

bool Event::captured() const {
  return completion_ && completion_->captured;
}

// No point of a schedule, because callers hold locks. A program that asks in a loop calls query().
bool Event::reached() const {
  refuse_captured_point(completion_, "a query");
  if (!completion_ || completion_->reached()) return true;
  completion_->queue->nudge();
  return false;
}

bool Event::query() const {
  if (!reached()) {
    base::schedule::point(base::schedule::Point::poll);
    return false;
  }
  if (completion_) completion_->failures.raise_one_for_all(error_epoch());
  return true;
}

void Event::wait() const {
  refuse_captured_point(completion_, "a wait of the host");
  if (completion_ && !completion_->reached()) completion_->queue->help_until(completion_->sequence);
}

void Event::synchronize() const {
  const std::uint64_t epoch = error_epoch();
  wait();
  if (completion_) completion_->failures.raise_one_for_all(epoch);
}

bool Event::wait_for(std::int64_t nanoseconds) const {
  refuse_captured_point(completion_, "a wait of the host");
  return !completion_ || completion_->reached() ||
         completion_->queue->wait_until(completion_->sequence, nanoseconds);
}

FailurePtr Event::failure() const {
  if (!completion_ || !completion_->reached()) return nullptr;
  return completion_->failures.to_raise(error_epoch());
}

std::int64_t Event::time_ns() const {
  return completion_ ? completion_->reached_at.load(std::memory_order_acquire) : 0;
}

}  // namespace vdev
