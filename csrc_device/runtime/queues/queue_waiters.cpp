#include "csrc_device/runtime/queues/queue_waiters.hpp"

#include <algorithm>
#include <optional>

#include "base/periods.hpp"
#include "base/schedule.hpp"
#include "csrc_device/runtime/interruption.hpp"

namespace vdev {

QueueWaiters::Time QueueWaiters::end_after(std::int64_t nanoseconds) {
  constexpr std::int64_t kYear = std::int64_t{365} * 24 * 3600 * 1'000'000'000;
  return std::chrono::steady_clock::now() +
         std::chrono::nanoseconds(std::clamp(nanoseconds, std::int64_t{0}, kYear));
}

std::cv_status QueueWaiters::sleep(Lock& lock, std::uint64_t sequence, Time end) {
  wake_at_ = std::min(wake_at_, sequence);
  ++sleepers_;
  const auto status = sleep_until(lock, end, interruptible());
  --sleepers_;
  return status;
}

std::cv_status QueueWaiters::sleep_until_worker_ends(Lock& lock, Time end) {
  return sleep_until(lock, end, false);
}

std::cv_status QueueWaiters::sleep_until(Lock& lock, Time end, bool looks) {
  if (base::schedule::is_on()) {
    using base::schedule::Look;
    const auto look = looks ? std::optional(Look{base::kInterruptionPeriod, &interrupted}) : std::nullopt;
    return base::schedule::sleep(this, lock, end, look);
  }
  if (looks) end = std::min(end, next_look());
  if (end != Time::max()) return moved_.wait_until(lock, end);
  moved_.wait(lock);
  return std::cv_status::no_timeout;
}

void QueueWaiters::wake() noexcept {
  moved_.notify_all();
  base::schedule::wake(this);
}

bool QueueWaiters::finished(std::uint64_t sequence) noexcept {
  if (sequence < wake_at_) return false;
  wake_at_ = kNever;
  return true;
}

}  // namespace vdev
