#include "csrc_device/runtime/queues/queue_waiters.hpp"

#include <algorithm>

namespace vdev {

QueueWaiters::Time QueueWaiters::end_after(std::int64_t nanoseconds) {
  constexpr std::int64_t kYear = std::int64_t{365} * 24 * 3600 * 1'000'000'000;
  return std::chrono::steady_clock::now() +
         std::chrono::nanoseconds(std::clamp(nanoseconds, std::int64_t{0}, kYear));
}

std::cv_status QueueWaiters::sleep(Lock& lock, std::uint64_t sequence, Time end) {
  wake_at_ = std::min(wake_at_, sequence);
  ++sleepers_;
  auto status = std::cv_status::no_timeout;
  if (end == Time::max())
    moved_.wait(lock);
  else
    status = moved_.wait_until(lock, end);
  --sleepers_;
  return status;
}

bool QueueWaiters::finished(std::uint64_t sequence) noexcept {
  if (sequence < wake_at_) return false;
  wake_at_ = kNever;
  return true;
}

}  // namespace vdev
