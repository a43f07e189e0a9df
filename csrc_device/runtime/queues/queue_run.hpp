// What the calling thread is running of the queues.
#pragma once

#include <cstdint>
#include <utility>

#include "csrc_device/runtime/queues/failure_list.hpp"
#include "csrc_device/runtime/task.hpp"

namespace vdev {

class Queue;
struct QueueItem;

/// Is made by a thread that runs items of a queue, and lives as long as the thread runs them. The runs of a
/// thread lie inside of each other: a task may wait for another queue, whose items the thread then runs.
class QueueRun {
 public:
  /// The thread that makes the object holds the queue's run token. `failures` are the queue's: only the
  /// holder of the token writes them, so that it may read them without the queue's lock.
  QueueRun(const Queue* queue, const FailureList& failures) noexcept
      : queue_(queue), failures_(failures), outer_(innermost_) {
    innermost_ = this;
  }
  ~QueueRun() { innermost_ = outer_; }
  QueueRun(const QueueRun&) = delete;
  QueueRun& operator=(const QueueRun&) = delete;

  /// Returns the innermost run of the calling thread, or null.
  static QueueRun* innermost() noexcept { return innermost_; }
  /// Returns whether the calling thread runs an item of `queue`.
  static bool of(const Queue* queue) noexcept;

  const Queue* queue() const { return queue_; }
  /// Call this before each item.
  void begin(const QueueItem& item) noexcept;
  /// Returns when the item that runs was enqueued (MemoryClock).
  std::uint64_t enqueued() const { return enqueued_; }

  void report(FailurePtr failure) { reported_.push(std::move(failure)); }
  /// Returns the failures that the item has reported.
  FailureList& reported() { return reported_; }
  /// Returns a failure before the running task, as failure_before_this_task() does.
  FailurePtr failure_before() const;
  /// Returns the failure for which `task`, which is to run next, is to be given up, or null.
  FailurePtr failure_that_stops(const TaskBody& task) const;
  /// Runs a task that nothing stops. Returns whether it has run to its end.
  bool run_or_fail(TaskBody& task) const;

 private:
  static inline constinit thread_local QueueRun* innermost_ = nullptr;

  const Queue* const queue_;
  const FailureList& failures_;
  QueueRun* const outer_;
  std::uint64_t epoch_ = 0;  // of the item that runs
  std::uint64_t enqueued_ = 0;
  FailureList reported_;
};

}  // namespace vdev
