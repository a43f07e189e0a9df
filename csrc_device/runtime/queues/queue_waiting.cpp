// How host threads wait for a queue, and how such a wait is interrupted.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/spinning.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/host_waits.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"

namespace vdev {

bool Queue::idle() const {
  // The order of the loads matters: pushed_ only grows, so if it equals the older `finished`, the queue was
  // empty in between.
  const std::uint64_t finished = finished_.load(std::memory_order_acquire);
  if (finished == pushed_.load(std::memory_order_acquire)) return true;
  const_cast<Queue*>(this)->nudge();
  return false;
}

bool Queue::finished_for_good() const {
  Lock lock(mutex_);
  return closing_ && items_.empty() && !running_.load(std::memory_order_relaxed);
}

bool Queue::stands_still(const std::vector<pthread_t>& blocked) const {
  if (inherited()) return true;
  Lock lock(mutex_);
  if (running_.load(std::memory_order_relaxed))
    return std::find(blocked.begin(), blocked.end(), runner_) != blocked.end();
  // Waits and points do nothing until a thread waits for them. A task that no thread runs yet will be
  // started.
  return std::none_of(items_.begin(), items_.end(),
                      [](const Item& item) { return item.kind == Kind::kTask; });
}

void Queue::nudge() {
  if (inherited() || running_.load(std::memory_order_relaxed)) return;
  Lock lock(mutex_);
  const bool wake = claim_worker(true);
  lock.unlock();
  if (wake) work_.notify_one();
}

/// Spins for a short time, because a running task often ends within the time that a sleep and a wake-up take.
void Queue::spin(std::uint64_t sequence) const {
  for (int look = base::looks_for_task(); look > 0; --look) {
    if (done(sequence) || !running_.load(std::memory_order_relaxed)) return;
    base::cpu_pause();
  }
}

void Queue::help_until(std::uint64_t sequence) {
  if (done(sequence)) return;
  help(sequence, true);
  if (interruption_pending()) raise_interruption();
}

/// Returns false when the calling thread has been interrupted and `gives_up` is set.
bool Queue::help(std::uint64_t sequence, bool gives_up) {
  if (done(sequence)) return true;
  check_fork();
  if (running_here()) {
    throw Error(
        base::text("a task of stream '", name_,
                   "' waits for the stream itself: it would wait for its own end. Enqueue what follows as a "
                   "further task instead of synchronising inside one"));
  }
  using Time = std::chrono::steady_clock::time_point;
  while (true) {
    if (running_.load(std::memory_order_relaxed)) spin(sequence);
    Lock lock(mutex_);
    if (!done(sequence) && running_.load(std::memory_order_relaxed)) {
      HostWait waiting;
      while (!done(sequence) && running_.load(std::memory_order_relaxed)) {
        const auto end = interruptible() ? next_look() : Time::max();
        if (sleep(lock, sequence, end) != std::cv_status::timeout) continue;
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

/// Sleeps until something may have changed for a thread that waits for `sequence`. The caller holds the lock.
std::cv_status Queue::sleep(Lock& lock, std::uint64_t sequence, std::chrono::steady_clock::time_point end) {
  wake_at_ = std::min(wake_at_, sequence);
  ++sleepers_;
  auto status = std::cv_status::no_timeout;
  if (end == std::chrono::steady_clock::time_point::max())
    progress_.wait(lock);
  else
    status = progress_.wait_until(lock, end);
  --sleepers_;
  return status;
}

bool Queue::wait_until(std::uint64_t sequence, std::int64_t nanoseconds) {
  if (done(sequence)) return true;
  if (inherited() || running_here()) return false;
  // A far deadline would overflow the clock, so a wait is limited to a year.
  constexpr std::int64_t kYear = std::int64_t{365} * 24 * 3600 * 1000000000;
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::nanoseconds(std::clamp(nanoseconds, std::int64_t{0}, kYear));
  Lock lock(mutex_);
  while (!done(sequence)) {
    if (claim_worker(true)) work_.notify_one();
    const auto end = interruptible() ? std::min(deadline, next_look()) : deadline;
    if (sleep(lock, sequence, end) != std::cv_status::timeout) continue;
    if (end == deadline) return done(sequence);
    lock.unlock();
    if (interrupted()) {
      interrupt(base::text("interrupted by ", interruption_name()));
      return done(sequence);
    }
    lock.lock();
  }
  return true;
}

// --- going first ---

/// Returns the item that the queue begins next, if it needs no task of another queue for that; otherwise
/// null. Null, too, while an item runs that may wait for others, because these may be behind the caller. The
/// caller holds the lock.
const Queue::Item* Queue::next_ready() const {
  if (running_.load(std::memory_order_relaxed) && !computes()) return nullptr;
  const auto next = std::ranges::find_if(
      items_, [](const Item& item) { return item.kind != Kind::kPoint && !item.abandoned; });
  if (next == items_.end() || (next->kind == Kind::kWait && !next->point->reached())) return nullptr;
  return &*next;
}

bool Queue::go_first(std::chrono::steady_clock::time_point end) {
  if (inherited() || running_here()) return false;
  const int computing = queues_computing();
  bool any = false;
  Lock lock(mutex_);
  while (const Item* next = next_ready()) {
    if (std::chrono::steady_clock::now() >= end) break;
    const bool running = running_.load(std::memory_order_relaxed);
    // The caller's task needs a core, and so does a queue that nobody runs.
    const bool spare = computing + !running < task_slots();
    if (!running && !spare && runs_without_waiting(*next)) {
      run(lock, pushed_.load(std::memory_order_relaxed), Runner::kBystander);
      any = true;
      lock.lock();
      continue;
    }
    if (!running && claim_worker(true)) work_.notify_one();
    if (spare || (!running && !worker_exists_)) break;
    const auto changed = [&, sequence = next->sequence] {
      const Item* now = next_ready();
      return !now || now->sequence != sequence || running != running_.load(std::memory_order_relaxed);
    };
    ++sleepers_;
    ++onlookers_;
    any |= progress_.wait_until(lock, end, changed);
    --onlookers_;
    --sleepers_;
  }
  return any;
}

void Queue::give_way() {
  if (!is_outranked()) return;
  // Between the parts of a task, the core that the task counts for is free.
  const bool computed = running_here() && computes_.exchange(false, std::memory_order_relaxed);
  yields_to_->give_way();
  if (computed) computes_.store(true, std::memory_order_relaxed);
}

// --- interrupting ---

void Queue::add_interruptible(const std::shared_ptr<Interruptible>& user) {
  Lock lock(mutex_);
  std::erase_if(interruptibles_, [&](const auto& known) { return known.expired(); });
  for (const auto& known : interruptibles_)
    if (known.lock() == user) return;
  interruptibles_.push_back(user);
}

/// Returns the queue of the point that the running item waits for, or null if the item waits for none.
std::shared_ptr<Queue> Queue::blocked_on() const {
  Lock lock(mutex_);
  return awaited_ && !awaited_->reached() ? awaited_->queue : nullptr;
}

void Queue::interrupt(const std::string& reason) {
  // This loop ends, because a queue waits only for points that were there before the wait was enqueued.
  auto queue = shared_from_this();
  while (auto next = queue->blocked_on()) queue = std::move(next);
  std::vector<std::shared_ptr<Interruptible>> users;
  {
    Lock lock(queue->mutex_);
    for (const auto& known : queue->interruptibles_)
      if (auto user = known.lock()) users.push_back(std::move(user));
  }
  for (const auto& user : users) user->interrupt(reason);
}

}  // namespace vdev
