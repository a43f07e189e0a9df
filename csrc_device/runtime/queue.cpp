#include "csrc_device/runtime/queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/fork.hpp"
#include "csrc_device/runtime/prompter.hpp"

namespace vdev {
namespace {

/// Counts the errors raised in this process. An item enqueued before an error was raised is skipped by
/// it, an item enqueued after is not: the host knows of the error by then.
std::atomic<std::uint64_t> report_epoch{1};

/// The tasks that the calling thread is inside of, innermost first.
struct Frame {
  explicit Frame(const Queue* q);
  ~Frame();
  const Queue* queue;
  Frame* below;
};
thread_local Frame* frames = nullptr;

Frame::Frame(const Queue* q) : queue(q), below(std::exchange(frames, this)) {}
Frame::~Frame() {
  frames = below;
}

/// Whether `record` makes an item of that epoch skip.
bool is_live(const std::shared_ptr<ErrorRecord>& record, std::uint64_t epoch) {
  if (!record) return false;
  const std::uint64_t reported = record->reported.load(std::memory_order_acquire);
  return reported == 0 || epoch < reported;
}

std::shared_ptr<ErrorRecord> record_of_current_exception() {
  return std::make_shared<ErrorRecord>(std::current_exception());
}

}  // namespace

std::int64_t monotonic_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool ErrorRecord::claim() {
  // The epoch moves before `reported` is set, so an item enqueued after the raise has at least the new epoch.
  const std::uint64_t epoch = report_epoch.fetch_add(1, std::memory_order_acq_rel) + 1;
  std::uint64_t unreported = 0;
  return reported.compare_exchange_strong(unreported, epoch, std::memory_order_acq_rel);
}

Queue::Queue(std::string name, bool blocking)
    : name_(std::move(name)), blocking_(blocking), generation_(fork_generation()) {}

bool Queue::orphaned() const noexcept {
  return generation_ != fork_generation();
}

void Queue::check_fork() const {
  if (orphaned()) throw BadFork(kBadForkText);
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

// --- adding items ---

void Queue::enqueue(std::function<void()> task, Start start) {
  check_fork();
  const bool inside = running_here();  // nobody can wait for it there
  const bool urgent = inside || (start == Start::kAtOnce && !blocking_);
  const std::uint64_t sequence = push(Kind::kTask, urgent, std::move(task), nullptr);
  if (!blocking_ || inside) return;
  help_until(sequence);
  raise();
}

std::shared_ptr<Completion> Queue::record() {
  check_fork();
  Lock lock(mutex_);
  const bool idle_now = items_.empty() && !running_.load(std::memory_order_relaxed);
  auto point =
      std::make_shared<Completion>(shared_from_this(), pushed_.load(std::memory_order_relaxed) + !idle_now);
  if (idle_now) {
    if (is_live(error_, report_epoch.load(std::memory_order_acquire))) point->error = error_;
    point->reached_at.store(monotonic_ns(), std::memory_order_release);
    return point;
  }
  // Behind a task that was left to a waiter, the point comes with it.
  append(Kind::kPoint, promised_ == 0, nullptr, point);
  const bool wake = claim_worker();
  lock.unlock();
  if (wake) work_.notify_one();
  return point;
}

void Queue::wait(const std::shared_ptr<Completion>& point) {
  check_fork();
  if (!point) return;
  const bool reached = point->reached();
  if (reached && !is_live(point->error, report_epoch.load(std::memory_order_acquire))) return;
  // The queue's own order does it; unless the point lies inside the running task, which must then not get
  // past it.
  if (point->queue.get() == this && !reached) return;
  push(Kind::kWait, false, nullptr, point);
}

std::uint64_t Queue::push(Kind kind, bool urgent, std::function<void()> task,
                          std::shared_ptr<Completion> point) {
  Lock lock(mutex_);
  append(kind, urgent, std::move(task), std::move(point));
  const std::uint64_t sequence = pushed_.load(std::memory_order_relaxed);
  const bool wake = claim_worker();
  lock.unlock();
  // After the unlock: a worker woken into a held lock would go back to sleep.
  if (wake) work_.notify_one();
  return sequence;
}

/// Lock held.
void Queue::append(Kind kind, bool urgent, std::function<void()> task, std::shared_ptr<Completion> point) {
  const std::uint64_t sequence = pushed_.load(std::memory_order_relaxed) + 1;
  items_.push_back({kind, urgent, sequence, report_epoch.load(std::memory_order_acquire), std::move(task),
                    std::move(point)});
  pushed_.store(sequence, std::memory_order_release);
  urgent_ += urgent;
  if (kind == Kind::kTask && !urgent) count_promised(1);
}

/// Lock held.
void Queue::count_promised(int change) {
  const bool had_some = promised_ > 0;
  promised_ += change;
  const bool has_some = promised_ > 0;
  if (has_some == had_some || blocking_) return;  // who enqueues in a blocking queue waits
  if (!has_some) return waiter_came();
  promised_at_ = monotonic_ns();
  expect_waiter(promised_at_);
}

// --- running items ---

/// Runs items up to `last`. Lock held and run token free on entry; returns with the lock released.
void Queue::run(Lock& lock, std::uint64_t last, bool is_worker) {
  const auto self = shared_from_this();  // a task may drop the last other pointer
  Frame frame(this);
  Trash trash;
  running_.store(true, std::memory_order_relaxed);
  bool wake_waiters = reach_points(trash);
  while (!items_.empty() && items_.front().sequence <= last && !(is_worker && stopped_)) {
    Item item = take(trash);
    const bool skip = error_ != nullptr;
    lock.unlock();
    if (std::exchange(wake_waiters, false)) progress_.notify_all();
    trash.clear();
    auto failure = execute(item, skip);
    lock.lock();
    if (failure && !error_) error_ = failure;
    if (failure) trash.push_back(std::move(failure));
    wake_waiters = finish(item.sequence);
    wake_waiters |= reach_points(trash);
  }
  running_.store(false, std::memory_order_relaxed);
  // Hand over what is left: to the worker, or to sleeping waiters where there can be none.
  const bool wake_worker = claim_worker();
  wake_waiters |= sleepers_ > 0 && !items_.empty() && !wake_worker;
  lock.unlock();
  if (wake_waiters) progress_.notify_all();
  if (wake_worker) work_.notify_one();
}

/// Pops the front item and forgets an error that no longer concerns it. Lock held.
Queue::Item Queue::take(Trash& trash) {
  Item item = std::move(items_.front());
  items_.pop_front();
  urgent_ -= item.urgent;
  if (item.kind == Kind::kTask && !item.urgent) count_promised(-1);
  if (error_ && !is_live(error_, item.epoch)) trash.push_back(std::exchange(error_, nullptr));
  return item;
}

/// Without the lock. The captures are gone when it returns: who sees the item finished may rely on it.
std::shared_ptr<ErrorRecord> Queue::execute(Item& item, bool skip) {
  std::shared_ptr<ErrorRecord> failure;
  try {
    if (item.kind == Kind::kTask) {
      if (!skip) item.task();
    } else {
      // Not skipped on an error: an item enqueued once the error is raised and cleared still comes after the
      // point.
      if (!item.point->reached()) item.point->queue->help_until(item.point->sequence);
      if (is_live(item.point->error, item.epoch)) failure = item.point->error;
    }
  } catch (...) {
    failure = record_of_current_exception();
  }
  item.task = nullptr;
  item.point.reset();
  return failure;
}

/// Reaches the points at the front. True when a sleeping waiter has something to see. Lock held, nothing
/// before them running.
bool Queue::reach_points(Trash& trash) {
  bool wake = false;
  while (!items_.empty() && items_.front().kind == Kind::kPoint) {
    Item item = take(trash);
    if (item.point) {
      if (!item.point->error) item.point->error = error_;
      item.point->reached_at.store(monotonic_ns(), std::memory_order_release);
      if (item.point->error) trash.push_back(std::move(item.point));
    }
    wake |= finish(item.sequence);
  }
  return wake;
}

/// Lock held.
bool Queue::finish(std::uint64_t sequence) {
  finished_.store(sequence, std::memory_order_release);
  if (sequence < wake_at_) return false;
  wake_at_ = kNever;
  return true;
}

// --- waiting ---

bool Queue::idle() const {
  // In this order: a later `pushed_` can only be larger, so equality means that the queue was empty in
  // between.
  const std::uint64_t finished = finished_.load(std::memory_order_acquire);
  if (finished == pushed_.load(std::memory_order_acquire)) return true;
  const_cast<Queue*>(this)->nudge();
  return false;
}

bool Queue::finished_for_good() const {
  Lock lock(mutex_);
  return closing_ && items_.empty() && !running_.load(std::memory_order_relaxed);
}

void Queue::nudge() {
  if (orphaned() || running_.load(std::memory_order_relaxed)) return;
  Lock lock(mutex_);
  const bool wake = claim_worker(true);
  lock.unlock();
  if (wake) work_.notify_one();
}

/// A task in progress often ends within the time that a sleep and a wake-up take.
void Queue::spin(std::uint64_t sequence) const {
  static const bool alone = std::thread::hardware_concurrency() <= 1;
  if (alone) return;
  for (int round = 0; round < 200; ++round) {
    if (done(sequence) || !running_.load(std::memory_order_relaxed)) return;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }
}

void Queue::help_until(std::uint64_t sequence) {
  if (done(sequence)) return;
  check_fork();
  if (running_here()) {
    throw Error("a task of stream '" + name_ +
                "' waits for the stream itself: it would wait for its own end. Enqueue what follows as a "
                "further task instead of synchronising inside one");
  }
  while (true) {
    if (running_.load(std::memory_order_relaxed)) spin(sequence);
    Lock lock(mutex_);
    while (!done(sequence) && running_.load(std::memory_order_relaxed)) {
      wake_at_ = std::min(wake_at_, sequence);
      ++sleepers_;
      progress_.wait(lock);
      --sleepers_;
    }
    if (done(sequence)) return;
    run(lock, sequence, false);
    if (done(sequence)) return;
  }
}

bool Queue::wait_until(std::uint64_t sequence, std::int64_t nanoseconds) {
  if (done(sequence)) return true;
  if (orphaned() || running_here()) return false;
  // Far deadlines overflow the clock; a year is for ever.
  constexpr std::int64_t kYear = std::int64_t{365} * 24 * 3600 * 1000000000;
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::nanoseconds(std::clamp(nanoseconds, std::int64_t{0}, kYear));
  Lock lock(mutex_);
  while (!done(sequence)) {
    if (claim_worker(true)) work_.notify_one();
    wake_at_ = std::min(wake_at_, sequence);
    ++sleepers_;
    const auto status = progress_.wait_until(lock, deadline);
    --sleepers_;
    if (status == std::cv_status::timeout) return done(sequence);
  }
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

void Queue::raise() {
  if (auto error = take_error()) std::rethrow_exception(error);
}

void Queue::abandon(std::exception_ptr error) {
  if (orphaned()) return;
  const auto record = error ? std::make_shared<ErrorRecord>(std::move(error)) : nullptr;
  std::vector<Item> dropped;
  Trash trash;
  Lock lock(mutex_);
  for (Item& item : items_) {
    if (item.kind == Kind::kPoint) {
      if (item.point && !item.point->error) item.point->error = record;
      continue;
    }
    // An empty point keeps the numbering: who waits for this item still sees it finish, in order.
    auto& gone = dropped.emplace_back(std::move(item));
    if (gone.kind == Kind::kTask && !gone.urgent) count_promised(-1);
    item = {Kind::kPoint, gone.urgent, gone.sequence, gone.epoch, nullptr, nullptr};
  }
  if (!dropped.empty() && record && !error_) error_ = record;
  // Behind a running task the points come when it returns: until then it may still use its memory.
  const bool wake = !running_.load(std::memory_order_relaxed) && reach_points(trash);
  lock.unlock();
  if (wake) progress_.notify_all();
}

}  // namespace vdev
