// The state behind a Stream and its Events: the in-order queue, the threads that run it, and the waits of
// other threads for it.
#pragma once

#include <pthread.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/interruption.hpp"
#include "csrc_device/runtime/queues/capture_slot.hpp"
#include "csrc_device/runtime/queues/completion.hpp"
#include "csrc_device/runtime/queues/failure_list.hpp"
#include "csrc_device/runtime/queues/queue_items.hpp"
#include "csrc_device/runtime/queues/queue_run.hpp"
#include "csrc_device/runtime/queues/queue_waiters.hpp"
#include "csrc_device/runtime/queues/queue_worker.hpp"
#include "csrc_device/runtime/queues/recent_waits.hpp"
#include "csrc_device/runtime/queues/run_token.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

class Capture;
class StreamOrder;

/// Runs items one at a time and in order. The thread that holds the queue's single run token runs them: the
/// worker, or a helper, which is a thread that waits for the queue. A queue is always held by a shared_ptr,
/// because Completions, the worker and helpers outlive the Stream.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  /// `card` and `stream` say whose queue it is; -1 means that it belongs to no card. `priority` is 0 or -1
  /// (high), and means nothing without a card.
  static std::shared_ptr<Queue> make(std::string name, bool blocking, int card = -1, std::int64_t stream = 0,
                                     int priority = 0);
  Queue(std::string name, bool blocking, int card, std::int64_t stream, int priority);
  ~Queue();

  const std::string& name() const { return name_; }
  const std::shared_ptr<const Lane>& lane() const { return lane_; }
  /// Returns true in a child that was forked after this object was made. Such a child may not lock or destroy
  /// anything of the queue.
  bool inherited() const noexcept { return made_.inherited(); }
  /// Throws BadFork when inherited() is true.
  void check_fork() const;

  void enqueue(Task task, Start start, Waits waits = Waits::kPerhaps);
  std::shared_ptr<Completion> record();
  /// Does what record() does, but behind the tasks that really are queued if the queue is captured.
  std::shared_ptr<Completion> record_uncaptured();
  void wait(const std::shared_ptr<Completion>& point);

  /// Returns the capture that records what the queue is given, or null.
  std::shared_ptr<Capture> capture() const { return capture_.get(); }
  /// Call these from Capture. begin_capture() returns false if the queue has a capture already.
  bool begin_capture(std::shared_ptr<Capture> capture) { return capture_.begin(std::move(capture)); }
  void end_capture() { capture_.end(); }

  bool idle() const;
  /// Returns whether a thread that synchronises now may have to wait for something other than deferred tasks:
  /// for other queues, or for tasks that need a thread of their own.
  bool would_block() const { return items_.has_blockers(); }
  /// Returns the number of items that have not finished.
  std::uint64_t length() const { return items_.length(); }
  /// Wakes the worker, or starts it, if items are queued that nobody runs. Call this before polling, or
  /// before a wait that does not help.
  void nudge();
  /// Wakes the worker and returns true if a deferred task has waited for `nanoseconds` without a helper.
  bool prompt(std::int64_t nanoseconds);
  /// Returns whether the queue cannot go on while the threads in `blocked` are blocked: it has no task to
  /// run, or one of these threads is in the midst of its task.
  bool stands_still(const std::vector<pthread_t>& blocked) const;
  /// Call this on a queue of high priority, on a thread that is about to begin a task of another stream.
  /// Returns when this queue has begun all that it can begin now, after `end`, or when a core is free for the
  /// caller's task as well. The caller itself runs the tasks that wait for nobody, if nobody runs the queue.
  /// Does not wait while a task runs that may wait for others. Returns whether anything has begun.
  bool go_first(std::chrono::steady_clock::time_point end);
  /// Returns whether a stream of high priority has work, and this queue has normal priority.
  bool is_outranked() const noexcept;
  /// Lets the streams of high priority go first if this queue is outranked. Call this before the calling
  /// thread runs something in the place of a task of this queue, or the next part of a task of this queue
  /// that it is running.
  void give_way();
  /// Returns whether a task that never waits is running. Relaxed: for an estimate of the cores in use.
  bool computes() const { return token_.computes(); }
  /// Returns true once the Stream is gone and nothing is left to run.
  bool finished_for_good() const;
  /// Returns the sequence number of the last item.
  std::uint64_t last() const { return items_.last(); }
  bool done(std::uint64_t sequence) const { return items_.done(sequence); }
  /// Returns true inside a task of this queue, on the thread that runs it.
  bool running_here() const noexcept { return QueueRun::of(this); }
  /// Returns true inside a task of any queue.
  static bool inside_task() noexcept { return QueueRun::innermost() != nullptr; }
  /// Returns true on the worker thread of any queue.
  static bool on_worker() noexcept { return QueueWorker::is_this_thread(); }
  /// Call this inside a task. Returns the queue that runs the task.
  static std::shared_ptr<Queue> running();
  /// Returns when the task that the calling thread runs was enqueued (MemoryClock), or nothing outside of a
  /// task.
  static std::optional<std::uint64_t> running_since() noexcept {
    const QueueRun* run = QueueRun::innermost();
    return run == nullptr ? std::nullopt : std::optional(run->enqueued());
  }

  /// Blocks until item `sequence` is finished. If no other thread runs the items up to it, the caller runs
  /// them. Throws CardError inside a task of this queue, because the wait could never end. Raises the
  /// interruption of the calling thread; by then, the wait has interrupted what the queue waits for.
  void help_until(std::uint64_t sequence);
  /// How many kernels, or collectives, may be queued before their calls wait, about as many as with CUDA.
  static constexpr std::uint64_t kMostTasks = 1024;
  /// Blocks while more than `most` items are queued, until half of them are left, and runs them like
  /// help_until(). So the host runs ahead of the queue by a bounded number of items, as CUDA's launches do,
  /// and what they hold stays bounded, too. An interruption ends the wait and stays pending, because the
  /// caller has enqueued its item already. Returns at once inside a task of this queue. The caller must not
  /// hold the GIL.
  void bound_length(std::uint64_t most);
  /// Does the same as help_until(), but an interruption stays pending. With `gives_up` it ends the wait; the
  /// result is then false, unless the item is finished.
  bool help(std::uint64_t sequence, bool gives_up);
  /// Blocks until item `sequence` is finished, without helping, because a task could take longer than the
  /// caller wants to wait. Returns false when the time is up, or when the calling thread has been
  /// interrupted.
  bool wait_until(std::uint64_t sequence, std::int64_t nanoseconds);

  /// Names the object that makes the running task fail when a thread that waits for it is interrupted. Adding
  /// the same object again changes nothing.
  void add_interruptible(const std::shared_ptr<Interruptible>& user) { interruptibles_.add(user); }
  /// Interrupts the task that this queue waits for, which may be a task of another queue: calls interrupt()
  /// of every object that was named for that task's queue.
  void interrupt(const std::string& reason);

  /// Returns the queue's failures.
  FailureList failures() const;
  /// Gives up the items that have not begun, because of `error`. Their points are reached with a failure,
  /// which becomes the queue's.
  void abandon(std::exception_ptr error);

  /// Call this from Promise, on a queue that has run nothing. Takes the run token, so that no thread ever
  /// gets it, and records a point. If the release is `watched`, stands_still() is true until then.
  std::shared_ptr<Completion> hold(bool watched);
  /// Reaches the point that hold() recorded, and gives the token back. Only the first call counts.
  void release(FailurePtr failure);

  /// Call this when the Stream is destroyed, after which nobody enqueues. Runs what is queued and joins the
  /// worker. Inside a task of this queue it leaves both to the worker.
  void close();
  /// Makes the worker end with its task. No worker starts afterwards, but helpers still run what is enqueued.
  void request_stop();
  /// Does what request_stop() does, and detaches the worker if its task does not return within
  /// `nanoseconds`. Returns true when no worker is left.
  bool stop(std::int64_t nanoseconds);

 private:
  friend class QueueWorker;
  using Kind = QueueItem::Kind;
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  /// Names the thread that runs items, and with it what an interruption of that thread does.
  enum class Runner : std::uint8_t { kWorker, kHelper, kHelperToTheEnd, kBystander };

  std::uint64_t push(Lock lock, QueueItem&& item);
  void unlock_and_wake(Lock& lock, bool wake);
  bool claim_worker(bool even_if_not_urgent = false);
  bool may_run(std::uint64_t last, Runner runner) const;
  const QueueItem* next_ready() const;
  bool lets_others_go_first() const noexcept;
  void run(Lock& lock, std::uint64_t last, Runner runner);
  bool reach_points();
  void spin(std::uint64_t sequence) const;
  std::shared_ptr<Queue> blocked_on() const;

  const std::string name_;
  const std::shared_ptr<const Lane> lane_;
  const bool blocking_;
  StreamOrder* const yields_to_;  // of normal priority: who goes first; null for others
  StreamOrder* const leads_;      // of high priority: who is told of its items; null for others
  const base::ProcessMark made_;

  // Guards the next six, but for what they say of themselves.
  mutable std::mutex mutex_;
  QueueItems items_;
  RecentWaits recent_waits_;
  RunToken token_;
  // At most one for each owner, of those that stand until they are dealt with. Only the thread that holds the
  // run token writes them, under the lock, so that this thread may read them without the lock.
  FailureList failures_;
  QueueWaiters waiters_;
  QueueWorker worker_{*this};

  CaptureSlot capture_;
  Interruptibles interruptibles_;
};

}  // namespace vdev
