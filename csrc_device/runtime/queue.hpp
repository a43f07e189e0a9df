// The state behind a Stream and its Events: the in-order queue, the threads that run it, and the waits of
// other threads for it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/runtime/interruption.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

class Capture;
class StreamOrder;
struct CapturedPoint;
class Queue;

/// Holds the state of one recorded point of a queue.
struct Completion {
  Completion(std::shared_ptr<Queue> q, std::uint64_t s) : queue(std::move(q)), sequence(s) {}
  const std::shared_ptr<Queue> queue;
  const std::uint64_t sequence;
  /// The queue's failures. Written before reached_at. Only threads that have seen reached_at set may read
  /// them.
  std::vector<FailurePtr> failures;
  /// Set if the point was recorded in a capture. Such a point is never reached. Written before the Completion
  /// is shared.
  std::shared_ptr<const CapturedPoint> captured;
  /// The time at which the point was reached, in monotonic nanoseconds, 0 before. The release store pairs
  /// with the acquire load in reached(). It publishes `failures` and everything that the tasks before
  /// the point have written.
  std::atomic<std::int64_t> reached_at{0};

  bool reached() const { return reached_at.load(std::memory_order_acquire) != 0; }
};

/// Returns the failure to raise for a call that began at `epoch`, or null: the first one that stands and that
/// nobody has raised yet, or else the first one that stands.
FailurePtr standing_failure(const std::vector<FailurePtr>& failures, std::uint64_t epoch);
/// Raises the standing_failure() of `failures`, and counts all of them as raised: a synchronisation raises
/// one failure for all. Returns if there is none.
void raise_one_for_all(const std::vector<FailurePtr>& failures, std::uint64_t epoch);
/// Does the same for the failures of a reached point.
void raise_failure(const Completion& point, std::uint64_t epoch);

/// Runs a task, as a part of the task that the calling thread runs: a graph consists of such parts. Gives the
/// part up if a failure before it demands that, and reports what it throws as a failure of the stream.
/// Returns false if the part did not run to its end.
bool run_part(TaskBody& part);
/// Gives a part of the running task up, and reports the failure to the stream.
void give_up_part(TaskBody& part, const FailurePtr& failure);

/// Says how far each queue of the process had been filled when the object was made. Thread-safe.
class QueuePoints {
 public:
  QueuePoints();
  /// Returns whether every queue has come that far, or is gone.
  bool passed() const;

 private:
  std::vector<std::pair<std::weak_ptr<Queue>, std::uint64_t>> points_;
};

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
  bool inherited() const noexcept;
  /// Throws BadFork when inherited() is true.
  void check_fork() const;

  void enqueue(Task task, Start start, Waits waits = Waits::kPerhaps);
  std::shared_ptr<Completion> record();
  /// Does what record() does, but behind the tasks that really are queued if the queue is captured.
  std::shared_ptr<Completion> record_uncaptured();
  void wait(const std::shared_ptr<Completion>& point);

  /// Returns the capture that records what the queue is given, or null.
  std::shared_ptr<Capture> capture() const;
  /// Call these from Capture. begin_capture() returns false if the queue has a capture already.
  bool begin_capture(std::shared_ptr<Capture> capture);
  void end_capture();

  bool idle() const;
  /// Returns whether a thread that synchronises now may have to wait for something other than deferred tasks:
  /// for other queues, or for tasks that need a thread of their own.
  bool would_block() const { return blockers_.load(std::memory_order_relaxed) != 0; }
  /// Returns the number of items that have not finished.
  std::uint64_t length() const {
    const std::uint64_t finished = finished_.load(std::memory_order_acquire);  // comes first: last() grows
    return last() - finished;
  }
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
  bool computes() const { return computes_.load(std::memory_order_relaxed); }
  /// Returns true once the Stream is gone and nothing is left to run.
  bool finished_for_good() const;
  /// Returns the sequence number of the last item.
  std::uint64_t last() const { return pushed_.load(std::memory_order_acquire); }
  bool done(std::uint64_t sequence) const { return finished_.load(std::memory_order_acquire) >= sequence; }
  /// Returns true inside a task of this queue, on the thread that runs it.
  bool running_here() const noexcept;
  /// Returns true inside a task of any queue.
  static bool inside_task() noexcept;
  /// Returns true on the worker thread of any queue.
  static bool on_worker() noexcept;
  /// Call this inside a task. Returns the queue that runs the task.
  static std::shared_ptr<Queue> running();
  /// Returns when the task that the calling thread runs was enqueued (MemoryClock), or nothing outside of a
  /// task.
  static std::optional<std::uint64_t> running_since() noexcept;

  /// Blocks until item `sequence` is finished. If no other thread runs the items up to it, the caller runs
  /// them. Throws Error inside a task of this queue, because the wait could never end. Raises the
  /// interruption of the calling thread; by then, the wait has interrupted what the queue waits for.
  void help_until(std::uint64_t sequence);
  /// Does the same, but an interruption does not end the wait and stays pending.
  void help_to_the_end(std::uint64_t sequence) { help(sequence, false); }
  /// Blocks until item `sequence` is finished, without helping, because a task could take longer than the
  /// caller wants to wait. Returns false when the time is up, or when the calling thread has been
  /// interrupted.
  bool wait_until(std::uint64_t sequence, std::int64_t nanoseconds);

  /// Names the object that makes the running task fail when a thread that waits for it is interrupted. Adding
  /// the same object again changes nothing.
  void add_interruptible(const std::shared_ptr<Interruptible>& user);
  /// Interrupts the task that this queue waits for, which may be a task of another queue: calls interrupt()
  /// of every object that was named for that task's queue.
  void interrupt(const std::string& reason);

  /// Raises a failure that stands for a call that began at `epoch`, as raise_one_for_all() does.
  void raise(std::uint64_t epoch);
  /// Raises a failure of which a caller that began at `epoch`, and asks spoiled_memory() next, would not
  /// learn: one that blocks the stream, one that was dealt with while the caller waited, or, once, one that
  /// nobody has raised yet.
  void raise_before_reading(std::uint64_t epoch);
  /// Returns the queue's failures.
  std::vector<FailurePtr> failures() const;
  /// Gives up the items that have not begun, because of `error`. Their points are reached with a failure,
  /// which becomes the queue's.
  void abandon(std::exception_ptr error);

  /// Call this from Promise, on a queue that has run nothing. Takes the run token, so that no thread ever
  /// gets it, and records a point.
  std::shared_ptr<Completion> hold();
  /// Reaches the point that hold() recorded, and gives the token back. Only the first call counts.
  void release(FailurePtr failure);

  /// Call this when the Stream is destroyed, after which nobody enqueues. Runs what is queued and joins the
  /// worker. Inside a task of this queue it leaves both to the worker.
  void close();
  /// Ends the worker, and detaches it if its task does not return within `nanoseconds`. No worker starts
  /// afterwards, but helpers still run what is enqueued. Returns true when no worker is left.
  bool stop(std::int64_t nanoseconds);

 private:
  enum class Kind : std::uint8_t { kTask, kWait, kPoint };
  struct Item {
    Kind kind;
    bool urgent;  // the worker must run it, even if nobody waits
    std::uint64_t sequence;
    std::uint64_t epoch;     // error epoch at the enqueue
    std::uint64_t enqueued;  // MemoryClock at the enqueue
    Task task;
    std::shared_ptr<Completion> point;  // the point to wait for, or to reach; a kPoint may have none
    // Where the task leaves the first failure that it reports, if its enqueuer waits for the task; otherwise
    // null. Written under the lock, before the item counts as finished.
    FailurePtr* reported = nullptr;
    std::unique_ptr<Launch> launch = nullptr;  // of a task, while activity is recorded
    Waits waits = Waits::kPerhaps;             // of a task
    FailurePtr abandoned = nullptr;            // why the task is not to run
  };
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  /// Holds what must be destroyed without the lock: destructors of captures and exceptions may use this
  /// queue.
  using Trash = std::vector<std::shared_ptr<void>>;

  bool wait_in_capture(const Completion& point);
  std::uint64_t push(Kind kind, bool urgent, Task task, std::shared_ptr<Completion> point,
                     FailurePtr* reported = nullptr, Waits waits = Waits::kPerhaps);
  void append(Kind kind, bool urgent, Task task, std::shared_ptr<Completion> point,
              FailurePtr* reported = nullptr, Waits waits = Waits::kPerhaps);
  void show_length();
  void count_deferred(int change);
  void count_blocker(const Item& item, int change);
  bool claim_worker(bool even_if_not_urgent = false);
  void wake_worker_if_tasks_pile_up(std::uint64_t sequence);
  void linger(Lock& lock);
  void start_worker();
  void request_stop();
  void work();
  /// Names the thread that runs items, and with it what an interruption of that thread does.
  enum class Runner : std::uint8_t { kWorker, kHelper, kHelperToTheEnd, kBystander };
  bool may_run(std::uint64_t last, Runner runner) const;
  static bool runs_without_waiting(const Item& item);
  const Item* next_ready() const;
  void run(Lock& lock, std::uint64_t last, Runner runner);
  bool help(std::uint64_t sequence, bool gives_up);
  std::cv_status sleep(Lock& lock, std::uint64_t sequence, std::chrono::steady_clock::time_point end);
  std::shared_ptr<Queue> blocked_on() const;
  Item take();
  static bool execute(Item& item, Runner runner);
  bool reach_points();
  void add_failures(std::vector<FailurePtr> reported, const Item& item, Trash& trash);
  bool finish(std::uint64_t sequence);
  void spin(std::uint64_t sequence) const;
  friend void stop_all_queues(std::int64_t nanoseconds) noexcept;
  friend FailurePtr failure_before_this_task();
  friend FailurePtr failure_that_stops(const TaskBody& task);

  const std::string name_;
  const std::shared_ptr<const Lane> lane_;
  const bool blocking_;
  StreamOrder* const yields_to_;  // of normal priority: who goes first; null for others
  StreamOrder* const leads_;      // of high priority: who is told of its items; null for others
  bool shown_busy_ = false;       // what leads_ was told last
  const base::ProcessMark made_;

  mutable std::mutex mutex_;
  // Guarded by mutex_. pushed_ and finished_ are also read without it. Those acquire loads pair with the
  // release stores, which are made under the lock: a thread that sees a number sees what the tasks up to that
  // number have written.
  std::deque<Item> items_;
  // Number of waits and urgent tasks that have not finished. Relaxed, because it is only a hint.
  std::atomic<std::size_t> blockers_{0};
  std::size_t urgent_ = 0;        // number of urgent items; waits are not urgent, because they can wait for a
                                  // helper
  int deferred_ = 0;              // number of deferred tasks (kByWaiter and kSoon)
  std::int64_t deferred_at_ = 0;  // when deferred_ last became positive, in monotonic nanoseconds
  std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<bool> running_{false};     // a thread, or a Promise, holds the run token
  std::atomic<bool> computes_{false};    // the item that runs never waits; written under the lock
  pthread_t runner_{};                   // the thread that holds the token; not for a Promise (see hold())
  std::shared_ptr<Completion> awaited_;  // the point that the item under way waits for
  std::vector<std::weak_ptr<Interruptible>> interruptibles_;
  // At most one for each owner, of those that stand until they are dealt with. Only the thread that holds the
  // run token writes them, under the lock, so that this thread may read them without the lock.
  std::vector<FailurePtr> failures_;

  std::condition_variable progress_;  // Waiters sleep on it. It is signalled when wake_at_ is passed, or when
                                      // the token is free again.
  std::uint64_t wake_at_ = kNever;    // the smallest sequence that a sleeping waiter waits for
  int sleepers_ = 0;
  int onlookers_ = 0;  // those of the sleepers that wait for an item to begin (go_first())

  std::condition_variable work_;  // the worker sleeps on it
  std::thread worker_;
  bool worker_exists_ = false;
  bool worker_asleep_ = false;
  std::atomic<bool> lingers_{false};  // tasks came with Start::kSoon; relaxed, a hint for the worker
  bool closing_ = false;              // the worker ends once the queue is empty
  bool stopped_ = false;              // the worker ends, and none may be started

  // Guarded by mutex_. The flag says whether there is a capture, so that other queues do without the lock. It
  // is relaxed, because the capture itself is read under the lock.
  std::shared_ptr<Capture> capture_;
  std::atomic<bool> captured_{false};
};

/// Returns the queues alive.
std::vector<std::shared_ptr<Queue>> queues_alive();

/// Returns the number of queues alive that compute.
int queues_computing();

/// Calls Queue::prompt() for every queue alive. Returns whether any call returned true.
bool prompt_all_queues(std::int64_t nanoseconds);

/// Gives up the items of every queue alive, then calls Queue::stop() for each, within `nanoseconds`
/// altogether.
void stop_all_queues(std::int64_t nanoseconds) noexcept;

}  // namespace vdev
