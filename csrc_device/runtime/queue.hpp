// The state behind a Stream and its Events: the in-order queue, who runs it, and how others wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

class Queue;

/// One failure, shared by every stream that inherits it, so that it is raised once in the process.
struct ErrorRecord {
  explicit ErrorRecord(std::exception_ptr e) : error(std::move(e)) {}
  const std::exception_ptr error;
  /// 0 until raised; then the report epoch at which it was (see Queue::is_live).
  std::atomic<std::uint64_t> reported{0};

  /// True for the one caller that is to raise it.
  bool claim();
};

/// One recorded point of a queue.
struct Completion {
  Completion(std::shared_ptr<Queue> q, std::uint64_t s) : queue(std::move(q)), sequence(s) {}
  const std::shared_ptr<Queue> queue;
  const std::uint64_t sequence;
  /// Written before reached_at; read only by those who have seen reached_at set.
  std::shared_ptr<ErrorRecord> error;
  /// Monotonic nanoseconds; 0: not reached. The release store pairs with the acquire load in reached() and
  /// publishes `error` and everything the tasks before the point have written.
  std::atomic<std::int64_t> reached_at{0};

  bool reached() const { return reached_at.load(std::memory_order_acquire) != 0; }
};

/// Items run one at a time, in order, by whoever holds the queue's single run token: the worker or a helping
/// waiter. Always held by a shared_ptr: Completions, the worker and helpers outlive the Stream.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  static std::shared_ptr<Queue> make(std::string name, bool blocking);
  Queue(std::string name, bool blocking);
  ~Queue();

  const std::string& name() const { return name_; }
  /// True in a child forked after this object was made: nothing of it may be locked or destroyed.
  bool orphaned() const noexcept;
  /// Throws BadFork when orphaned.
  void check_fork() const;

  void enqueue(std::function<void()> task, Start start);
  std::shared_ptr<Completion> record();
  void wait(const std::shared_ptr<Completion>& point);

  bool idle() const;
  /// Gets going what wakes nobody when it is enqueued: for those who poll, or wait without helping.
  void nudge();
  /// Wakes the worker if a task left to a waiter has waited in vain for `nanoseconds`. True if one has.
  bool prompt(std::int64_t nanoseconds);
  /// True once the Stream is gone and nothing is left to run.
  bool finished_for_good() const;
  /// Sequence number of the last item.
  std::uint64_t last() const { return pushed_.load(std::memory_order_acquire); }
  bool done(std::uint64_t sequence) const { return finished_.load(std::memory_order_acquire) >= sequence; }
  /// True inside a task of this queue, on the thread that runs it.
  bool running_here() const noexcept;
  /// True inside a task of any queue.
  static bool inside_task() noexcept;

  /// Returns once item `sequence` is finished, running items up to it here where nobody else is at them.
  /// Throws Error inside a task of this queue, when the wait could never end.
  void help_until(std::uint64_t sequence);
  /// Waits without helping, as a task taken on could last longer than the caller wants to wait.
  bool wait_until(std::uint64_t sequence, std::int64_t nanoseconds);

  /// Raises the sticky error if nobody has, and clears it.
  void raise();
  /// Clears the sticky error and returns it when nobody has raised it yet; it counts as raised then.
  std::exception_ptr take_error();
  void abandon(std::exception_ptr error);

  /// For Promise, on a queue that has run nothing: takes the run token, so that nobody else ever has it, and
  /// records a point.
  std::shared_ptr<Completion> hold();
  /// Reaches that point and gives the token back. The first call counts.
  void release(std::exception_ptr error);

  /// The Stream is going: no more items will come from outside. Runs what is queued and joins the worker, or
  /// leaves both to the worker when called inside a task of this queue.
  void close();
  /// Ends the worker; it is left behind (detached) when its task does not return within `nanoseconds`.
  /// Nothing starts another one afterwards; helpers still run what is enqueued. True when no thread is left.
  bool stop(std::int64_t nanoseconds);

 private:
  enum class Kind : std::uint8_t { kTask, kWait, kPoint };
  struct Item {
    Kind kind;
    bool urgent;  // the worker must come for it
    std::uint64_t sequence;
    std::uint64_t epoch;  // report epoch at the enqueue
    std::function<void()> task;
    std::shared_ptr<Completion> point;  // to wait for, or to reach; a kPoint may have none
  };
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  /// What must be destroyed without the lock: destructors of captures and exceptions may come back here.
  using Trash = std::vector<std::shared_ptr<void>>;

  std::uint64_t push(Kind kind, bool urgent, std::function<void()> task, std::shared_ptr<Completion> point);
  void append(Kind kind, bool urgent, std::function<void()> task, std::shared_ptr<Completion> point);
  void count_promised(int change);
  bool claim_worker(bool even_if_not_urgent = false);
  void start_worker();
  void request_stop();
  void work();
  void run(Lock& lock, std::uint64_t last, bool is_worker);
  Item take(Trash& trash);
  static std::shared_ptr<ErrorRecord> execute(Item& item, bool skip);
  bool reach_points(Trash& trash);
  bool finish(std::uint64_t sequence);
  void spin(std::uint64_t sequence) const;
  friend void stop_all_queues(std::int64_t nanoseconds) noexcept;

  const std::string name_;
  const bool blocking_;
  const int generation_;

  mutable std::mutex mutex_;
  // Guarded by mutex_. The two counters are also read without it: acquire loads that pair with the release
  // stores made under the lock, so that who sees a number sees what the tasks up to it have written.
  std::deque<Item> items_;
  std::size_t urgent_ = 0;        // how many are urgent. Waits are not: they can wait for a helper
  int promised_ = 0;              // how many are tasks that were left to a waiter (Start::kByWaiter)
  std::int64_t promised_at_ = 0;  // since when there are any, in monotonic nanoseconds
  std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<bool> running_{false};  // somebody holds the run token
  std::shared_ptr<ErrorRecord> error_;

  std::condition_variable
      progress_;                    // for waiters; signalled when wake_at_ is passed or the token falls free
  std::uint64_t wake_at_ = kNever;  // the smallest sequence that a sleeping waiter waits for
  int sleepers_ = 0;

  std::condition_variable work_;  // for the worker
  std::thread worker_;
  bool worker_exists_ = false;
  bool worker_asleep_ = false;
  bool closing_ = false;  // the worker ends once the queue is empty
  bool stopped_ = false;  // no worker may be started
};

/// Queue::prompt for every queue alive: whether any task had waited in vain.
bool prompt_all_queues(std::int64_t nanoseconds);

/// Queue::stop for every queue alive, within `nanoseconds` altogether; their items are dropped first.
void stop_all_queues(std::int64_t nanoseconds) noexcept;

std::int64_t monotonic_ns() noexcept;

}  // namespace vdev
