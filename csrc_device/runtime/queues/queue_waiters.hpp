// The threads that sleep until a queue has come to an item.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace vdev {

/// Lets threads sleep, and tells when they are to be woken. The caller holds the queue's lock, except for
/// wake().
class QueueWaiters {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Time = std::chrono::steady_clock::time_point;

  /// Returns the time that is so many nanoseconds ahead. Less than 0 counts as 0, and more than a year as a
  /// year, because the clock would overflow.
  static Time end_after(std::int64_t nanoseconds);

  /// Sleeps until something may have changed for a thread that waits for item `sequence`. Time::max() stands
  /// for no end. Returns `timeout` at `end`, and when an interruptible thread has to ask for an interruption.
  std::cv_status sleep(Lock& lock, std::uint64_t sequence, Time end);
  /// Sleeps until `changed()`, which depends on which items have begun. Returns whether it has changed before
  /// `end`.
  template <class Changed>
  bool look_on(Lock& lock, Time end, const Changed& changed) {
    ++sleepers_;
    ++onlookers_;
    const bool has = moved_.wait_until(lock, end, changed);
    --onlookers_;
    --sleepers_;
    return has;
  }
  /// Sleeps until wake(), for a thread that waits for the worker's end. The queue need not know of it.
  std::cv_status sleep_until_worker_ends(Lock& lock, Time end);

  bool any() const { return sleepers_ > 0; }
  /// Call this when item `sequence` has finished. Returns whether the caller has to call wake() once it has
  /// released the lock.
  bool finished(std::uint64_t sequence) noexcept;
  /// Call this when an item has begun.
  void begun() noexcept {
    if (onlookers_ > 0) moved_.notify_all();
  }
  void wake() noexcept;

 private:
  std::cv_status sleep_until(Lock& lock, Time end, bool looks);

  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  std::condition_variable moved_;   // signalled when wake_at_ is passed, or when the run token is free again
  std::uint64_t wake_at_ = kNever;  // the smallest sequence that a sleeping waiter waits for
  int sleepers_ = 0;
  int onlookers_ = 0;  // those of the sleepers that look on
};

}  // namespace vdev
