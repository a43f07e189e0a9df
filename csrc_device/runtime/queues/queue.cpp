#include "csrc_device/runtime/queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/memory_clock.hpp"
#include "csrc_device/runtime/queues/deferred_task_timer.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"

namespace vdev {
namespace {

/// Lists the tasks that the calling thread is running, innermost first.
struct Frame {
  explicit Frame(const Queue* q);
  ~Frame();
  const Queue* queue;
  Frame* below;
  std::uint64_t epoch = 0;           // epoch of the item that runs now
  std::uint64_t enqueued = 0;        // MemoryClock when that item was enqueued
  std::vector<FailurePtr> failures;  // failures that the item has reported
};
thread_local Frame* frames = nullptr;

Frame::Frame(const Queue* q) : queue(q), below(std::exchange(frames, this)) {}
Frame::~Frame() {
  frames = below;
}

template <class Matches>
FailurePtr first_of(const std::vector<FailurePtr>& failures, const Matches& matches) {
  const auto found = std::ranges::find_if(failures, matches);
  return found == failures.end() ? nullptr : *found;
}

FailurePtr first_standing(const std::vector<FailurePtr>& failures, std::uint64_t epoch) {
  return first_of(failures, [=](const auto& failure) { return failure->stands(epoch); });
}

}  // namespace

void report_failure(FailurePtr failure) {
  if (frames != nullptr) frames->failures.push_back(std::move(failure));
}

FailurePtr failure_before_this_task() {
  if (frames == nullptr) return nullptr;
  // A replayed graph is one item, whose earlier tasks may have failed.
  if (auto failure = first_standing(frames->failures, frames->epoch)) return failure;
  return first_standing(frames->queue->failures_, frames->epoch);
}

/// Returns the failure for which the running thread's next task is to be given up, or null.
FailurePtr failure_that_stops(const TaskBody& task) {
  if (!task.knows_its_memory()) return failure_before_this_task();
  if (frames->failures.empty() && frames->queue->failures_.empty()) [[likely]] {
    return nullptr;
  }
  // What was dealt with stops no task: the task could spoil nothing in its name any more.
  const std::uint64_t now = error_epoch();
  const auto stops = [=](const auto& failure) { return failure->blocks() && failure->stands(now); };
  if (auto failure = first_of(frames->failures, stops)) return failure;
  return first_of(frames->queue->failures_, stops);
}

/// Runs a task that nothing stops. Returns whether it has run to its end.
static bool run_or_fail(TaskBody& task) {
  try {
    task.run();
    return true;
  } catch (...) {
    auto error = std::current_exception();
    give_up_part(task, task.knows_its_memory() ? program_errors().fail(std::move(error))
                                               : program_errors().fail_unknown(std::move(error)));
    return false;
  }
}

bool run_part(TaskBody& part) {
  const auto failure = failure_that_stops(part);
  if (!failure) return run_or_fail(part);
  give_up_part(part, failure);
  return false;
}

Queue::Queue(std::string name, bool blocking, int card, std::int64_t stream, int priority)
    : name_(std::move(name)),
      lane_(std::make_shared<const Lane>(Lane{card, stream, name_})),
      blocking_(blocking),
      yields_to_(card >= 0 && priority >= 0 ? &stream_order(card) : nullptr),
      leads_(card >= 0 && priority < 0 ? &stream_order(card) : nullptr) {}

bool Queue::inherited() const noexcept {
  return made_.inherited();
}

void Queue::check_fork() const {
  if (inherited()) throw BadFork();
}

bool Queue::running_here() const noexcept {
  for (const Frame* frame = frames; frame; frame = frame->below) {
    if (frame->queue == this) return true;
  }
  return false;
}

bool Queue::inside_task() noexcept {
  return frames != nullptr;
}

std::optional<std::uint64_t> Queue::running_since() noexcept {
  return frames == nullptr ? std::nullopt : std::optional(frames->enqueued);
}

std::shared_ptr<Queue> Queue::running() {
  return std::const_pointer_cast<Queue>(frames->queue->shared_from_this());
}

// --- adding items ---

void Queue::enqueue(Task task, Start start, Waits waiting) {
  check_fork();
  if (const auto capturing = capture(); capturing && capturing->add(*this, task)) return;
  const bool inside = running_here();  // a wait inside the queue's own task would never end
  const bool urgent = inside || (start == Start::kAtOnce && !blocking_);
  const bool waits = blocking_ && !inside;
  FailurePtr reported;
  const std::uint64_t sequence =
      push(Kind::kTask, urgent, std::move(task), nullptr, waits ? &reported : nullptr, waiting);
  if (start == Start::kSoon) wake_worker_if_tasks_pile_up(sequence);
  if (!waits) return;
  help_until(sequence);
  // Only the failure of this task is raised. Failures of earlier tasks may have nothing to do with it.
  if (reported) reported->raise();
}

std::shared_ptr<Completion> Queue::record() {
  check_fork();
  if (const auto capturing = capture()) {
    if (auto place = capturing->record(*this)) {
      auto point = std::make_shared<Completion>(shared_from_this(), 0);
      point->captured = std::move(place);
      return point;
    }
  }
  return record_uncaptured();
}

std::shared_ptr<Completion> Queue::record_uncaptured() {
  Lock lock(mutex_);
  const bool idle_now = items_.empty() && !running_.load(std::memory_order_relaxed);
  auto point =
      std::make_shared<Completion>(shared_from_this(), pushed_.load(std::memory_order_relaxed) + !idle_now);
  if (idle_now) {
    point->failures = failures_;
    point->reached_at.store(base::monotonic_ns(), std::memory_order_release);
    return point;
  }
  // If the point comes after a deferred task, the thread that runs the task also reaches the point.
  append(Kind::kPoint, deferred_ == 0, nullptr, point);
  const bool wake = claim_worker();
  lock.unlock();
  if (wake) work_.notify_one();
  return point;
}

void Queue::wait(const std::shared_ptr<Completion>& point) {
  check_fork();
  if (!point) return;
  if (point->captured || captured_.load(std::memory_order_relaxed)) {
    if (wait_in_capture(*point)) return;
  }
  const bool reached = point->reached();
  if (reached && !first_standing(point->failures, error_epoch())) return;
  // An unreached point of this queue comes before everything that is enqueued from now on, so no item is
  // needed. A reached point with a failure still needs an item, which passes the failure on.
  if (point->queue.get() == this && !reached) return;
  push(Kind::kWait, false, nullptr, point);
}

std::uint64_t Queue::push(Kind kind, bool urgent, Task task, std::shared_ptr<Completion> point,
                          FailurePtr* reported, Waits waits) {
  Lock lock(mutex_);
  append(kind, urgent, std::move(task), std::move(point), reported, waits);
  const std::uint64_t sequence = pushed_.load(std::memory_order_relaxed);
  const bool wake = claim_worker();
  lock.unlock();
  // Notifies after the unlock: otherwise the worker would wake up and sleep again on the lock.
  if (wake) work_.notify_one();
  return sequence;
}

/// The caller holds the lock.
void Queue::append(Kind kind, bool urgent, Task task, std::shared_ptr<Completion> point, FailurePtr* reported,
                   Waits waits) {
  const std::uint64_t sequence = pushed_.load(std::memory_order_relaxed) + 1;
  // Made first, so that a lack of memory leaves the queue as it was.
  auto launch = kind == Kind::kTask && is_recording() ? make_launch(lane_) : nullptr;
  items_.push_back({kind, urgent, sequence, error_epoch(), MemoryClock::now(), std::move(task),
                    std::move(point), reported, std::move(launch), waits});
  pushed_.store(sequence, std::memory_order_release);
  urgent_ += urgent;
  count_blocker(items_.back(), 1);
  if (kind == Kind::kTask && !urgent) count_deferred(1);
  show_length();
}

/// Tells the card's other streams whether this one, of high priority, has items that have not begun. The
/// caller holds the lock.
void Queue::show_length() {
  if (leads_ == nullptr || shown_busy_ != items_.empty()) return;
  shown_busy_ = !shown_busy_;
  leads_->count_busy(shown_busy_ ? 1 : -1);
}

/// The caller holds the lock.
void Queue::count_blocker(const Item& item, int change) {
  const bool blocks = item.kind == Kind::kWait || (item.kind == Kind::kTask && item.urgent);
  if (blocks) blockers_.fetch_add(static_cast<std::size_t>(change), std::memory_order_relaxed);
}

/// The caller holds the lock.
void Queue::count_deferred(int change) {
  const bool had_some = deferred_ > 0;
  deferred_ += change;
  const bool has_some = deferred_ > 0;
  if (has_some == had_some || blocking_) return;  // in a blocking queue, the enqueuer waits
  if (!has_some) return waiter_came();
  deferred_at_ = base::monotonic_ns();
  expect_waiter(deferred_at_);
}

// --- running items ---

/// The caller holds the lock.
bool Queue::may_run(std::uint64_t last, Runner runner) const {
  if (items_.empty() || items_.front().sequence > last) return false;
  if (runner == Runner::kWorker) return !stopped_ || items_.front().abandoned;
  return runner != Runner::kBystander || runs_without_waiting(items_.front());
}

bool Queue::runs_without_waiting(const Item& item) {
  return item.kind == Kind::kTask ? item.waits == Waits::kNever
                                  : item.kind == Kind::kPoint || item.point->reached();
}

bool Queue::is_outranked() const noexcept {
  return yields_to_ != nullptr && yields_to_->has_high_work();
}

/// Runs items up to `last`. On entry the lock is held and the run token is free; on return the lock is
/// released. A helper that is interrupted in a wait leaves the wait in the queue.
void Queue::run(Lock& lock, std::uint64_t last, Runner runner) {
  const auto self = shared_from_this();  // a task may destroy the last other pointer
  Frame frame(this);
  Trash trash;
  running_.store(true, std::memory_order_relaxed);
  runner_ = pthread_self();
  bool wake_waiters = reach_points();
  while (may_run(last, runner)) {
    if (is_outranked() && items_.front().kind == Kind::kTask && !items_.front().abandoned) {
      lock.unlock();
      if (std::exchange(wake_waiters, false)) progress_.notify_all();
      trash.clear();
      yields_to_->give_way();
      lock.lock();
      if (!may_run(last, runner)) break;  // abandon() or request_stop() came in between
    }
    Item item = take();
    computes_.store(item.kind == Kind::kTask && item.waits == Waits::kNever, std::memory_order_relaxed);
    if (item.kind == Kind::kWait) awaited_ = item.point;
    lock.unlock();
    if (std::exchange(wake_waiters, false)) progress_.notify_all();
    trash.clear();
    frame.epoch = item.epoch;
    frame.enqueued = item.enqueued;
    const bool executed = execute(item, runner);
    lock.lock();
    computes_.store(false, std::memory_order_relaxed);
    if (awaited_) trash.push_back(std::exchange(awaited_, nullptr));
    if (!executed) {
      items_.push_front(std::move(item));
      show_length();
      break;
    }
    if (!frame.failures.empty()) add_failures(std::exchange(frame.failures, {}), item, trash);
    count_blocker(item, -1);
    wake_waiters = finish(item.sequence);
    wake_waiters |= reach_points();
  }
  running_.store(false, std::memory_order_relaxed);
  // The worker runs what is left, or sleeping waiters do if there can be no worker.
  const bool wake_worker = claim_worker();
  wake_waiters |= sleepers_ > 0 && !items_.empty() && !wake_worker;
  lock.unlock();
  if (wake_waiters) progress_.notify_all();
  if (wake_worker) work_.notify_one();
}

/// Takes the front item out. The caller holds the lock.
Queue::Item Queue::take() {
  Item item = std::move(items_.front());
  items_.pop_front();
  show_length();
  if (onlookers_ > 0) progress_.notify_all();
  urgent_ -= item.urgent;
  if (item.kind == Kind::kTask && !item.urgent) count_deferred(-1);
  return item;
}

/// Executes an item. The caller does not hold the lock. When it returns true, the task's captures are
/// destroyed, on which a thread that sees the item finished may rely. It returns false for a helper that was
/// interrupted in a wait; the item is then unchanged.
bool Queue::execute(Item& item, Runner runner) {
  if (item.kind == Kind::kTask) {
    if (const auto failure = item.abandoned ? item.abandoned : failure_that_stops(*item.task)) {
      give_up_part(*item.task, failure);
    } else {
      const ActivityRun activity(std::move(item.launch));
      run_or_fail(*item.task);
    }
  } else {
    // A wait is never given up: what comes behind it must still come after the point.
    try {
      if (!item.point->reached() && !item.point->queue->help(item.point->sequence, runner == Runner::kHelper))
        return false;
    } catch (...) {
      report_failure(program_errors().fail_unknown(std::current_exception()));
    }
    if (item.point->reached()) {
      for (const auto& inherited : item.point->failures) {
        if (inherited->stands(item.epoch)) report_failure(inherited);
      }
    }
  }
  item.task = nullptr;
  item.point.reset();
  return true;
}

/// Adds the failures that the item has reported to the queue's, and removes those that do not stand any more.
/// Of the failures that stand until they are dealt with, one for each owner is enough. The caller holds the
/// lock.
void Queue::add_failures(std::vector<FailurePtr> reported, const Item& item, Trash& trash) {
  if (item.reported != nullptr) *item.reported = reported.front();
  const std::uint64_t now = error_epoch();
  for (auto& failure : failures_) {
    if (!failure->stands(now)) trash.push_back(std::exchange(failure, nullptr));
  }
  std::erase(failures_, nullptr);
  for (auto& failure : reported) {
    const bool known =
        std::ranges::any_of(failures_, [&](const auto& other) { return failure->adds_nothing_to(*other); });
    if (known)
      trash.push_back(std::move(failure));
    else
      failures_.push_back(std::move(failure));
  }
}

/// Reaches the points at the front of the queue. Returns true when a sleeping waiter must wake up. The caller
/// holds the lock, and no item before the points is running.
bool Queue::reach_points() {
  bool wake = false;
  while (!items_.empty() && items_.front().kind == Kind::kPoint) {
    Item item = take();
    if (item.point) {
      item.point->failures = failures_;
      item.point->reached_at.store(base::monotonic_ns(), std::memory_order_release);
    }
    wake |= finish(item.sequence);
  }
  return wake;
}

/// The caller holds the lock.
bool Queue::finish(std::uint64_t sequence) {
  finished_.store(sequence, std::memory_order_release);
  if (sequence < wake_at_) return false;
  wake_at_ = kNever;
  return true;
}

}  // namespace vdev
