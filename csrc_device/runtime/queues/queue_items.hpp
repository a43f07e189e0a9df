// What a queue holds: tasks, waits for points of other queues, and points, in their order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/queues/completion.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

class StreamOrder;

struct QueueItem {
  enum class Kind : std::uint8_t { kTask, kWait, kPoint };

  Kind kind;
  bool urgent;                        // the worker must run it, even if nobody waits
  Task task;                          // of a kTask
  std::shared_ptr<Completion> point;  // the point to wait for, or to reach; a kPoint may have none
  // Where the task leaves the first failure that it reports, if its enqueuer waits for the task; otherwise
  // null. Written under the lock, before the item counts as finished.
  FailurePtr* reported = nullptr;
  Waits waits = Waits::kPerhaps;  // of a task

  // QueueItems::append() sets the next four.
  std::uint64_t sequence = 0;
  std::uint64_t epoch = 0;                   // error epoch at the enqueue
  std::uint64_t enqueued = 0;                // MemoryClock at the enqueue
  std::unique_ptr<Launch> launch = nullptr;  // of a task, while activity is recorded

  FailurePtr abandoned = nullptr;  // why the task is not to run

  bool is_deferred() const { return kind == Kind::kTask && !urgent; }
  /// Returns whether a thread that synchronises with the queue may have to wait for something other than
  /// deferred tasks because of this item.
  bool blocks() const { return kind == Kind::kWait || (kind == Kind::kTask && urgent); }
  bool computes() const { return kind == Kind::kTask && waits == Waits::kNever; }
  bool runs_without_waiting() const {
    return kind == Kind::kTask ? waits == Waits::kNever : kind == Kind::kPoint || point->reached();
  }

  /// Runs the task or waits for the point, inside of a QueueRun and without the queue's lock. If it returns
  /// true, the task's captures are destroyed, on which a thread that sees the item finished may rely. With
  /// `gives_up` it returns false if the calling thread was interrupted in a wait; the item is then unchanged.
  bool execute(bool gives_up);
};

/// Holds the items of a queue that have not begun, and counts those that were enqueued and have finished. The
/// caller of a function holds the queue's lock, unless the comment says otherwise.
class QueueItems {
 public:
  /// A queue that is `blocking` defers nothing, because its enqueuer waits. `leads` is told of the items; it
  /// is null for a queue that does not have high priority.
  QueueItems(bool blocking, StreamOrder* leads) : blocking_(blocking), leads_(leads) {}
  /// Withdraws what the timer of deferred tasks and `leads` were told. Call this before the destructor, but
  /// not in a forked child.
  void withdraw() noexcept;

  bool empty() const { return items_.empty(); }
  const QueueItem& front() const { return items_.front(); }
  bool has_tasks() const;
  /// Returns the first item that does something, if it can do it now: not a wait for a point that is not
  /// reached. Otherwise returns null.
  const QueueItem* next_ready() const;

  /// Appends an item and returns its sequence number. `lane` is where a profile shows the queue.
  std::uint64_t append(QueueItem&& item, const std::shared_ptr<const Lane>& lane);
  /// Takes the front item out. It counts as begun.
  QueueItem take();
  /// Puts a wait back that take() has returned and that is not over.
  void put_back(QueueItem&& wait);
  /// Counts an item that was taken out as finished.
  void finish(const QueueItem& item);
  /// Marks the tasks as not to be run, because of `failure`, and makes waits to empty points, so that the
  /// numbering stays: a thread that waits for such an item still sees it finish, in order. The points that
  /// were waited for go to `trash`.
  void abandon(const FailurePtr& failure, Trash& trash);

  std::size_t urgent() const { return urgent_; }
  /// Returns for how many nanoseconds there have been deferred tasks, or -1 if there are none.
  std::int64_t deferred_for() const;
  bool has_deferred() const { return deferred_ > 0; }

  /// The next functions need no lock. The acquire loads pair with the release stores of append() and
  /// finish(): a thread that sees a number sees what the tasks up to that number have written.
  std::uint64_t last() const { return pushed_.load(std::memory_order_acquire); }
  bool done(std::uint64_t sequence) const { return finished_.load(std::memory_order_acquire) >= sequence; }
  /// Returns the number of items that have not finished.
  std::uint64_t length() const {
    // The order of the loads matters. The number of the last item only grows, so if it equals the older
    // `finished`, the queue was empty in between.
    const std::uint64_t finished = finished_.load(std::memory_order_acquire);
    return last() - finished;
  }
  /// Returns whether an item blocks(). Relaxed, because it is only a hint.
  bool has_blockers() const { return blockers_.load(std::memory_order_relaxed) != 0; }
  /// Does what last() does, for a thread that holds the lock or needs no more than the number.
  std::uint64_t last_number() const { return pushed_.load(std::memory_order_relaxed); }

 private:
  void show_length();
  void count_deferred(int change);
  void count_blocker(const QueueItem& item, int change);

  const bool blocking_;
  StreamOrder* const leads_;
  bool shown_busy_ = false;  // what leads_ was told last
  std::deque<QueueItem> items_;
  std::size_t urgent_ = 0;        // number of urgent items; waits are not urgent, because they can wait for a
                                  // helper
  int deferred_ = 0;              // number of deferred tasks (kByWaiter and kSoon)
  std::int64_t deferred_at_ = 0;  // when deferred_ last became positive, in monotonic nanoseconds
  std::atomic<std::size_t> blockers_{0};  // number of items that block and have not finished
  std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint64_t> finished_{0};
};

}  // namespace vdev
