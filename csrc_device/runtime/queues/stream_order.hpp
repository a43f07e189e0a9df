// Which streams of a card begin their next tasks first.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace vdev {

class Queue;

/// Orders the tasks of one card's streams by priority. A thread that is about to begin a task of normal
/// priority calls give_way() if has_high_work(). Thread-safe.
///
/// Nothing can wait for ever because of the order. A thread that gives way runs only tasks that wait for
/// nobody (Waits::kNever), does not wait for a queue whose running task may wait for somebody, and gives way
/// for a limited time (longest_put_off).
class StreamOrder {
 public:
  /// Adds a queue of high priority. It reports with count_busy() when it gets its first item (1), and when
  /// its last item has begun (-1).
  void add(const std::shared_ptr<Queue>& queue);
  void count_busy(int change) noexcept { busy_.fetch_add(change, std::memory_order_relaxed); }
  /// Returns whether a queue of high priority has an item that has not begun. Relaxed: whoever enqueued that
  /// item before the caller's task did so before the caller took the lock of its own queue, and the caller
  /// finds it. Otherwise either order is right.
  bool has_high_work() const noexcept { return busy_.load(std::memory_order_relaxed) != 0; }
  /// Returns when the queues of high priority have begun all that they can begin now, or a core is free for
  /// the caller as well.
  void give_way();

 private:
  std::vector<std::shared_ptr<Queue>> queues();

  std::atomic<int> busy_{0};
  std::mutex mutex_;  // guards queues_
  std::vector<std::weak_ptr<Queue>> queues_;
};

/// Returns the order of a card, which lives as long as the process. `card` is 0 to kMostCards - 1.
StreamOrder& stream_order(int card);

/// The nanoseconds for which a task of normal priority gives way at most. A program that fills a stream of
/// high priority until a task of another stream has run would never end otherwise. Only tests change it.
inline std::atomic<std::int64_t> longest_put_off{1'000'000'000};

/// Says how many tasks of this process find a core at a time (set_kernel_threads()). A number below 1 counts
/// as 1, which also holds without a call.
void set_task_slots(int count) noexcept;
int task_slots() noexcept;

}  // namespace vdev
