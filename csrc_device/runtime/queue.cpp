#include "csrc_device/runtime/queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/streams/deferred_task_timer.hpp"
#include "csrc_device/runtime/streams/stream_order.hpp"

namespace vdev {
namespace {

/// Lists the tasks that the calling thread is running, innermost first.
struct Frame {
  explicit Frame(const Queue* q);
  ~Frame();
  const Queue* queue;
  Frame* below;
  std::uint64_t epoch = 0;           // epoch of the item that runs now
  std::vector<FailurePtr> failures;  // failures that the item has reported
};
thread_local Frame* frames = nullptr;

Frame::Frame(const Queue* q) : queue(q), below(std::exchange(frames, this)) {}
Frame::~Frame() {
  frames = below;
}

/// Returns whether `record` makes an item of that epoch skip. An item that was enqueued before the error was
/// raised is skipped. An item that was enqueued after is not, because the host knew of the error.
bool is_live(const std::shared_ptr<ErrorRecord>& record, std::uint64_t epoch) {
  if (!record) return false;
  const std::uint64_t reported = record->reported.load(std::memory_order_acquire);
  return reported == 0 || epoch < reported;
}

std::shared_ptr<ErrorRecord> record_of_current_exception() {
  return std::make_shared<ErrorRecord>(std::current_exception());
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

void raise_failure(const Completion& point, std::uint64_t epoch) {
  if (const auto failure = first_standing(point.failures, epoch)) {
    failure->raised_for_stream();
    std::rethrow_exception(failure->error());
  }
}

bool ErrorRecord::claim() {
  // The epoch moves before `reported` is set, so an item enqueued after the raise has at least the new epoch.
  const std::uint64_t epoch = next_error_epoch();
  std::uint64_t unreported = 0;
  return reported.compare_exchange_strong(unreported, epoch, std::memory_order_acq_rel);
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

std::shared_ptr<Queue> Queue::running() {
  return std::const_pointer_cast<Queue>(frames->queue->shared_from_this());
}

// --- adding items ---

void Queue::enqueue(std::function<void()> task, Start start, Waits waiting) {
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
  if (auto error = take_error()) std::rethrow_exception(error);
  // Only the failure of this task is raised. Failures of earlier tasks may have nothing to do with it.
  if (reported) std::rethrow_exception(reported->error());
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
    if (is_live(error_, error_epoch())) point->error = error_;
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
  const std::uint64_t epoch = error_epoch();
  if (reached && !is_live(point->error, epoch) && !first_standing(point->failures, epoch)) return;
  // An unreached point of this queue comes before everything that is enqueued from now on, so no item is
  // needed. A reached point with an error still needs an item, which passes the error on.
  if (point->queue.get() == this && !reached) return;
  push(Kind::kWait, false, nullptr, point);
}

std::uint64_t Queue::push(Kind kind, bool urgent, std::function<void()> task,
                          std::shared_ptr<Completion> point, FailurePtr* reported, Waits waits) {
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
void Queue::append(Kind kind, bool urgent, std::function<void()> task, std::shared_ptr<Completion> point,
                   FailurePtr* reported, Waits waits) {
  const std::uint64_t sequence = pushed_.load(std::memory_order_relaxed) + 1;
  // Made first, so that a lack of memory leaves the queue as it was.
  auto launch = kind == Kind::kTask && is_recording() ? make_launch(lane_) : nullptr;
  items_.push_back({kind, urgent, sequence, error_epoch(), std::move(task), std::move(point), reported,
                    std::move(launch), waits});
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
  if (runner == Runner::kWorker) return !stopped_;
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
  bool wake_waiters = reach_points(trash);
  while (may_run(last, runner)) {
    if (is_outranked() && items_.front().kind == Kind::kTask) {
      lock.unlock();
      if (std::exchange(wake_waiters, false)) progress_.notify_all();
      trash.clear();
      yields_to_->give_way();
      lock.lock();
      if (!may_run(last, runner)) break;  // abandon() or request_stop() came in between
    }
    Item item = take(trash);
    const bool skip = error_ != nullptr;
    computes_.store(item.kind == Kind::kTask && item.waits == Waits::kNever, std::memory_order_relaxed);
    if (item.kind == Kind::kWait) awaited_ = item.point;
    lock.unlock();
    if (std::exchange(wake_waiters, false)) progress_.notify_all();
    trash.clear();
    frame.epoch = item.epoch;
    std::shared_ptr<ErrorRecord> failure;
    const bool executed = execute(item, skip, runner, failure);
    lock.lock();
    computes_.store(false, std::memory_order_relaxed);
    if (awaited_) trash.push_back(std::exchange(awaited_, nullptr));
    if (!executed) {
      items_.push_front(std::move(item));
      show_length();
      break;
    }
    if (failure && !error_) error_ = failure;
    if (failure) trash.push_back(std::move(failure));
    if (!frame.failures.empty()) add_failures(std::exchange(frame.failures, {}), item, trash);
    count_blocker(item, -1);
    wake_waiters = finish(item.sequence);
    wake_waiters |= reach_points(trash);
  }
  running_.store(false, std::memory_order_relaxed);
  // The worker runs what is left, or sleeping waiters do if there can be no worker.
  const bool wake_worker = claim_worker();
  wake_waiters |= sleepers_ > 0 && !items_.empty() && !wake_worker;
  lock.unlock();
  if (wake_waiters) progress_.notify_all();
  if (wake_worker) work_.notify_one();
}

/// Takes the front item out, and drops an error that no longer concerns the item. The caller holds the lock.
Queue::Item Queue::take(Trash& trash) {
  Item item = std::move(items_.front());
  items_.pop_front();
  show_length();
  if (onlookers_ > 0) progress_.notify_all();
  urgent_ -= item.urgent;
  if (item.kind == Kind::kTask && !item.urgent) count_deferred(-1);
  if (error_ && !is_live(error_, item.epoch)) trash.push_back(std::exchange(error_, nullptr));
  return item;
}

/// Executes an item. The caller does not hold the lock. When it returns true, the task's captures are
/// destroyed, on which a thread that sees the item finished may rely. It returns false for a helper that was
/// interrupted in a wait; the item is then unchanged.
bool Queue::execute(Item& item, bool skip, Runner runner, std::shared_ptr<ErrorRecord>& failure) {
  try {
    if (item.kind == Kind::kTask) {
      const ActivityRun activity(skip ? nullptr : std::move(item.launch));
      if (!skip) item.task();
    } else {
      // A wait is not skipped on an error. An item that is enqueued after the error was raised and cleared
      // must still come after the point.
      if (!item.point->reached() && !item.point->queue->help(item.point->sequence, runner == Runner::kHelper))
        return false;
      if (is_live(item.point->error, item.epoch)) failure = item.point->error;
      for (const auto& inherited : item.point->failures) {
        if (inherited->stands(item.epoch)) report_failure(inherited);
      }
    }
  } catch (...) {
    failure = record_of_current_exception();
  }
  item.task = nullptr;
  item.point.reset();
  return true;
}

/// Adds the failures that the item has reported to the queue's, one for each owner, and removes those that
/// were dealt with. The caller holds the lock.
void Queue::add_failures(std::vector<FailurePtr> reported, const Item& item, Trash& trash) {
  if (item.reported != nullptr) *item.reported = reported.front();
  const std::uint64_t now = error_epoch();
  for (auto& failure : failures_) {
    if (!failure->stands(now)) trash.push_back(std::exchange(failure, nullptr));
  }
  std::erase(failures_, nullptr);
  for (auto& failure : reported) {
    const auto same_owner = [&](const auto& other) { return other->owner() == failure->owner(); };
    if (std::ranges::any_of(failures_, same_owner))
      trash.push_back(std::move(failure));
    else
      failures_.push_back(std::move(failure));
  }
}

/// Reaches the points at the front of the queue. Returns true when a sleeping waiter must wake up. The caller
/// holds the lock, and no item before the points is running.
bool Queue::reach_points(Trash& trash) {
  bool wake = false;
  while (!items_.empty() && items_.front().kind == Kind::kPoint) {
    Item item = take(trash);
    if (item.point) {
      if (!item.point->error) item.point->error = error_;
      item.point->failures = failures_;
      item.point->reached_at.store(base::monotonic_ns(), std::memory_order_release);
      if (item.point->error) trash.push_back(std::move(item.point));
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

// --- errors ---

std::exception_ptr Queue::take_error() {
  check_fork();
  std::shared_ptr<ErrorRecord> record;
  {
    Lock lock(mutex_);
    record = std::exchange(error_, nullptr);
  }
  return record && record->claim() ? record->error : nullptr;
}

FailurePtr Queue::standing_failure(std::uint64_t epoch) {
  Lock lock(mutex_);
  return first_standing(failures_, epoch);
}

void Queue::raise(std::uint64_t epoch) {
  if (auto error = take_error()) std::rethrow_exception(error);
  if (const auto failure = standing_failure(epoch)) {
    failure->raised_for_stream();
    std::rethrow_exception(failure->error());
  }
}

void Queue::raise_before_reading(std::uint64_t epoch) {
  FailurePtr settled;
  std::shared_ptr<ErrorRecord> record;
  {
    Lock lock(mutex_);
    record = std::exchange(error_, nullptr);
    settled = first_of(failures_, [=](const auto& failure) { return failure->settled_since(epoch); });
  }
  if (record && record->claim()) std::rethrow_exception(record->error);
  if (settled) std::rethrow_exception(settled->error());
}

void Queue::abandon(std::exception_ptr error) {
  if (inherited()) return;
  const auto record = error ? std::make_shared<ErrorRecord>(std::move(error)) : nullptr;
  std::vector<Item> dropped;
  Trash trash;
  Lock lock(mutex_);
  for (Item& item : items_) {
    if (item.kind == Kind::kPoint) {
      if (item.point && !item.point->error) item.point->error = record;
      continue;
    }
    // An empty point keeps the numbering, so that a thread that waits for this item still sees it finish, in
    // order.
    auto& gone = dropped.emplace_back(std::move(item));
    count_blocker(gone, -1);
    if (gone.kind == Kind::kTask && !gone.urgent) count_deferred(-1);
    item = {Kind::kPoint, gone.urgent, gone.sequence, gone.epoch, nullptr, nullptr};
  }
  if (!dropped.empty() && record && !error_) error_ = record;
  // If a task is running, it reaches the points when it returns, because it may use its memory until then.
  const bool wake = (!running_.load(std::memory_order_relaxed) && reach_points(trash)) || onlookers_ > 0;
  lock.unlock();
  if (wake) progress_.notify_all();
}

}  // namespace vdev
