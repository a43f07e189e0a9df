#include "csrc_device/runtime/queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.hpp"
#include "base/schedule.hpp"
#include "base/spinning.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/host_waits.hpp"
#include "csrc_device/runtime/queues/all_queues.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"

namespace vdev {

using base::schedule::Point;

std::shared_ptr<Queue> Queue::make(std::string name, bool blocking, int card, std::int64_t stream,
                                   int priority) {
  auto queue = std::make_shared<Queue>(std::move(name), blocking, card, stream, priority);
  if (queue->leads_ != nullptr) queue->leads_->add(queue);
  add_to_all_queues(queue.get());
  return queue;
}

Queue::Queue(std::string name, bool blocking, int card, std::int64_t stream, int priority)
    : name_(std::move(name)),
      lane_(std::make_shared<const Lane>(Lane{card, stream, name_})),
      blocking_(blocking),
      yields_to_(card >= 0 && priority >= 0 ? &stream_order(card) : nullptr),
      leads_(card >= 0 && priority < 0 ? &stream_order(card) : nullptr),
      items_(blocking, leads_) {}

Queue::~Queue() {
  if (!inherited()) items_.withdraw();
  remove_from_all_queues(this);
}

void Queue::check_fork() const {
  if (inherited()) throw BadFork();
}

std::shared_ptr<Queue> Queue::running() {
  return std::const_pointer_cast<Queue>(QueueRun::innermost()->queue()->shared_from_this());
}

FailureList Queue::failures() const {
  check_fork();
  Lock lock(mutex_);
  return failures_;
}

// --- adding items ---

void Queue::enqueue(Task task, Start start, Waits waiting) {
  check_fork();
  if (const auto capturing = capture(); capturing && capturing->add(*this, task)) return;
  const bool inside = running_here();  // a wait inside the queue's own task would never end
  const bool urgent = inside || (start == Start::kAtOnce && !blocking_);
  const bool waits = blocking_ && !inside;
  FailurePtr reported;
  const std::uint64_t sequence = push(Lock(mutex_), {.kind = Kind::kTask,
                                                     .urgent = urgent,
                                                     .task = std::move(task),
                                                     .point = nullptr,
                                                     .reported = waits ? &reported : nullptr,
                                                     .waits = waiting});
  if (start == Start::kSoon) worker_.wake_if_tasks_pile_up(sequence);
  base::schedule::point(Point::push);
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
  const bool idle_now = items_.empty() && !token_.held();
  auto point = std::make_shared<Completion>(shared_from_this(), items_.last_number() + !idle_now);
  if (idle_now) {
    point->reach(failures_, base::monotonic_ns());
    return point;
  }
  // If the point comes after a deferred task, the thread that runs the task also reaches the point.
  items_.append({.kind = Kind::kPoint, .urgent = !items_.has_deferred(), .task = nullptr, .point = point},
                lane_);
  unlock_and_wake(lock, claim_worker());
  return point;
}

void Queue::wait(const std::shared_ptr<Completion>& point) {
  check_fork();
  if (!point) return;
  if (point->captured || capture_.taken()) {
    if (Capture::wait_for(*point, shared_from_this())) return;
  }
  const bool reached = point->reached();
  if (reached && !point->failures.first_standing(error_epoch())) return;
  // An unreached point of this queue comes before everything that is enqueued from now on, so no item is
  // needed. A reached point with a failure still needs an item, which passes the failure on.
  if (point->queue.get() == this && !reached) return;
  Lock lock(mutex_);
  if (!reached && !recent_waits_.add(point)) return;
  push(std::move(lock), {.kind = Kind::kWait, .urgent = false, .task = nullptr, .point = point});
}

/// Wakes the worker without the lock, because it would sleep again on the lock otherwise.
void Queue::unlock_and_wake(Lock& lock, bool wake) {
  lock.unlock();
  if (wake) worker_.wake();
}

std::uint64_t Queue::push(Lock lock, QueueItem&& item) {
  const std::uint64_t sequence = items_.append(std::move(item), lane_);
  unlock_and_wake(lock, claim_worker());
  return sequence;
}

std::shared_ptr<Completion> Queue::hold(bool watched) {
  check_fork();
  Lock lock(mutex_);
  token_.take_for_promise(watched);
  auto point = std::make_shared<Completion>(shared_from_this(), items_.last_number() + 1);
  items_.append({.kind = Kind::kPoint, .urgent = false, .task = nullptr, .point = point}, lane_);
  return point;
}

void Queue::release(FailurePtr failure) {
  if (inherited()) return;
  Lock lock(mutex_);
  if (!token_.held()) return;  // released before
  if (failure) failures_.push(std::move(failure));
  const bool wake = reach_points();
  // The point keeps it. It is not kept for ~Queue, which runs wherever the last Event is destroyed.
  failures_ = {};
  token_.give_back();
  lock.unlock();
  if (wake) waiters_.wake();
}

void Queue::abandon(std::exception_ptr error) {
  if (inherited()) return;
  const auto failure = program_errors().fail_unknown(std::move(error));
  Trash waits;
  Lock lock(mutex_);
  items_.abandon(failure, waits);
  recent_waits_.forget();
  // If a task is running, the thread that runs it does the rest when the task returns, because it may use its
  // memory until then.
  if (!token_.held()) return run(lock, items_.last_number(), Runner::kHelperToTheEnd);
  waiters_.begun();
}

// --- running items ---

/// Makes sure that a worker runs the items of a queue that no thread runs. Returns true when the caller must
/// wake the worker once it has released the lock. The caller holds the lock.
bool Queue::claim_worker(bool even_if_not_urgent) {
  // A thread that runs items checks again when it stops.
  if (token_.held()) return false;
  const bool wanted = even_if_not_urgent || base::schedule::is_on();
  if (items_.urgent() == 0 && !worker_.closing() && (items_.empty() || !wanted)) return false;
  return worker_.claim(!items_.empty());
}

/// The caller holds the lock.
bool Queue::may_run(std::uint64_t last, Runner runner) const {
  if (items_.empty() || items_.front().sequence > last) return false;
  if (runner == Runner::kWorker) return !worker_.stopped() || items_.front().abandoned;
  return runner != Runner::kBystander || items_.front().runs_without_waiting();
}

/// Runs items up to `last`. On entry the lock is held and the run token is free; on return the lock is
/// released. A helper that is interrupted in a wait leaves the wait in the queue.
void Queue::run(Lock& lock, std::uint64_t last, Runner runner) {
  const auto self = shared_from_this();  // a task may destroy the last other pointer
  QueueRun here(this, failures_);
  Trash trash;
  token_.take();
  bool wake_waiters = reach_points();
  while (may_run(last, runner)) {
    if (lets_others_go_first()) {
      lock.unlock();
      if (std::exchange(wake_waiters, false)) waiters_.wake();
      trash.clear();
      if (is_outranked()) yields_to_->give_way();
      base::schedule::point(Point::task);
      lock.lock();
      if (!may_run(last, runner)) break;  // abandon() or request_stop() came in between
    }
    QueueItem item = items_.take();
    waiters_.begun();
    token_.begin(item);
    lock.unlock();
    if (std::exchange(wake_waiters, false)) waiters_.wake();
    trash.clear();
    here.begin(item);
    const bool executed = item.execute(runner == Runner::kHelper);
    base::schedule::point(Point::task);  // before others learn that the item has ended
    lock.lock();
    token_.end(trash);
    if (!executed) {
      items_.put_back(std::move(item));
      break;
    }
    if (!here.reported().empty()) {
      if (item.reported != nullptr) *item.reported = here.reported().first();
      failures_.merge(std::exchange(here.reported(), {}), trash);
    }
    items_.finish(item);
    wake_waiters = waiters_.finished(item.sequence);
    wake_waiters |= reach_points();
  }
  token_.give_back();
  // The worker runs what is left, or sleeping waiters do if there can be no worker.
  const bool wake_worker = claim_worker();
  wake_waiters |= waiters_.any() && !items_.empty() && !wake_worker;
  lock.unlock();
  if (wake_waiters) waiters_.wake();
  if (wake_worker) worker_.wake();
}

/// Reaches the points at the front of the queue. Returns true when a sleeping waiter must wake up. The caller
/// holds the lock, and no item before the points is running.
bool Queue::reach_points() {
  bool wake = false;
  while (!items_.empty() && items_.front().kind == Kind::kPoint) {
    const QueueItem item = items_.take();
    waiters_.begun();
    if (item.point) item.point->reach(failures_, base::monotonic_ns());
    items_.finish(item);
    wake |= waiters_.finished(item.sequence);
  }
  return wake;
}

// --- looking ---

bool Queue::idle() const {
  if (items_.length() == 0) return true;
  const_cast<Queue*>(this)->nudge();
  return false;
}

bool Queue::finished_for_good() const {
  Lock lock(mutex_);
  return worker_.closing() && items_.empty() && !token_.held();
}

bool Queue::stands_still(const std::vector<pthread_t>& blocked) const {
  if (inherited()) return true;
  Lock lock(mutex_);
  if (token_.held()) return token_.held_by_watched_promise() || token_.held_by_one_of(blocked);
  // Waits and points do nothing until a thread waits for them. A task that no thread runs yet will be
  // started.
  return !items_.has_tasks();
}

void Queue::nudge() {
  if (inherited() || token_.held()) return;
  Lock lock(mutex_);
  unlock_and_wake(lock, claim_worker(true));
}

bool Queue::prompt(std::int64_t nanoseconds) {
  if (inherited()) return false;
  {
    Lock lock(mutex_);
    if (token_.held() || !items_.has_deferred() || items_.deferred_for() < nanoseconds) return false;
  }
  nudge();
  return true;
}

// --- waiting ---

/// Spins for a short time, because a running task often ends within the time that a sleep and a wake-up take.
void Queue::spin(std::uint64_t sequence) const {
  if (base::schedule::is_on()) return;  // the running task waits for the turn that this thread has
  for (int look = base::looks_for_task(); look > 0; --look) {
    if (done(sequence) || !token_.held()) return;
    base::cpu_pause();
  }
}

void Queue::help_until(std::uint64_t sequence) {
  if (done(sequence)) return;
  help(sequence, true);
  if (interruption_pending()) raise_interruption();
}

void Queue::bound_length(std::uint64_t most) {
  if (length() <= most) [[likely]] {
    return;
  }
  if (!running_here()) help(last() - most / 2, true);
}

bool Queue::help(std::uint64_t sequence, bool gives_up) {
  if (done(sequence)) return true;
  check_fork();
  if (running_here()) {
    throw CardError(
        base::text("a task of stream '", name_,
                   "' waits for the stream itself: it would wait for its own end. Enqueue what follows as a "
                   "further task instead of synchronising inside one"));
  }
  while (true) {
    if (token_.held()) spin(sequence);
    Lock lock(mutex_);
    if (!done(sequence) && token_.held()) {
      HostWait waiting;
      while (!done(sequence) && token_.held()) {
        if (waiters_.sleep(lock, sequence, QueueWaiters::Time::max()) != std::cv_status::timeout) continue;
        lock.unlock();
        if (interrupted()) {
          interrupt(base::text("interrupted by ", interruption_name()));
          if (gives_up) return done(sequence);
        }
        lock.lock();
      }
    }
    if (done(sequence)) return true;
    run(lock, sequence, gives_up ? Runner::kHelper : Runner::kHelperToTheEnd);
    if (done(sequence)) {
      // A task that waited inside has seen the interruption, and failed.
      if (interruption_pending()) interrupt(base::text("interrupted by ", interruption_name()));
      return true;
    }
    if (gives_up && interruption_pending()) return false;
  }
}

bool Queue::wait_until(std::uint64_t sequence, std::int64_t nanoseconds) {
  if (done(sequence)) return true;
  if (inherited() || running_here()) return false;
  const base::ThreadWaits waits;
  const auto deadline = QueueWaiters::end_after(nanoseconds);
  Lock lock(mutex_);
  while (!done(sequence)) {
    if (claim_worker(true)) worker_.wake();
    if (waiters_.sleep(lock, sequence, deadline) != std::cv_status::timeout) continue;
    if (std::chrono::steady_clock::now() >= deadline) return done(sequence);
    lock.unlock();
    if (interrupted()) {
      interrupt(base::text("interrupted by ", interruption_name()));
      return done(sequence);
    }
    lock.lock();
  }
  return true;
}

/// Returns the queue of the point that the running item waits for, or null if the item waits for none.
std::shared_ptr<Queue> Queue::blocked_on() const {
  Lock lock(mutex_);
  return token_.blocked_on();
}

void Queue::interrupt(const std::string& reason) {
  // This loop ends, because a queue waits only for points that were there before the wait was enqueued.
  auto queue = shared_from_this();
  while (auto next = queue->blocked_on()) queue = std::move(next);
  queue->interruptibles_.interrupt(reason);
}

// --- the end ---

void Queue::close() {
  if (inherited()) return;
  Lock lock(mutex_);
  // Inside a task of the queue, run() wakes the worker when the task has returned, and the worker ends when
  // nothing is left.
  if (running_here()) return worker_.close_later();
  while (!items_.empty() || token_.held()) {
    lock.unlock();
    help(last(), false);
    lock.lock();
  }
  // No thread can raise the failures any more. They are destroyed here and not in ~Queue, which runs wherever
  // the last Event is destroyed.
  const auto failures = std::exchange(failures_, {});
  worker_.close(lock);
}

void Queue::request_stop() {
  Lock lock(mutex_);
  unlock_and_wake(lock, worker_.request_stop());
}

bool Queue::stop(std::int64_t nanoseconds) {
  if (inherited()) return true;
  request_stop();
  Lock lock(mutex_);
  return worker_.stop(lock, QueueWaiters::end_after(nanoseconds));
}

}  // namespace vdev
