#include "csrc_device/runtime/queues/queue_worker.hpp"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/clock.hpp"
#include "base/schedule.hpp"
#include "base/signals.hpp"
#include "base/spinning.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {
namespace {

thread_local constinit bool is_worker = false;

}  // namespace

bool QueueWorker::is_this_thread() noexcept {
  return is_worker;
}

bool QueueWorker::claim(bool has_items) {
  if (exists_) return std::exchange(asleep_, false);
  if (has_items && !stopped_) start();
  return false;
}

/// Starts the worker. If the system has no thread to give, waiters run the items.
void QueueWorker::start() {
  base::SignalsBlocked blocked;
  if (thread_.joinable()) thread_.join();  // this worker has ended
  try {
    const base::schedule::NewThread scheduled;
    thread_ = std::thread([scheduled, queue = queue_.shared_from_this()] {
      scheduled.begin();
      queue->worker_.work();
      base::schedule::end_thread();
    });
  } catch (const std::system_error&) {
    return;
  }
  pthread_setname_np(thread_.native_handle(), queue_.name().substr(0, 15).c_str());
  exists_ = true;
  if (closing_) thread_.detach();  // the Stream is gone, and with it the thread that would join the worker
}

void QueueWorker::work() {
  is_worker = true;
  Lock lock(queue_.mutex_);
  while (true) {
    const bool taken = queue_.token_.held(), empty = queue_.items_.empty();
    if (stopped_ || (closing_ && empty && !taken)) break;
    if (!empty && !taken) {
      queue_.run(lock, Queue::kNever, Queue::Runner::kWorker);
      lock.lock();
      continue;
    }
    if (!taken && lingers_.load(std::memory_order_relaxed)) {
      linger(lock);
      continue;
    }
    asleep_ = true;
    while (asleep_) sleep(lock);
  }
  exists_ = false;
  lock.unlock();
  queue_.waiters_.wake();
}

/// Sleeps until wake(), or for a shorter time.
void QueueWorker::sleep(Lock& lock) {
  // A worker that is left from before the schedule joins it only when it is woken, by wake_one(). If it
  // joined by itself, time would decide when, and so which number it gets.
  if (base::schedule::is_on() && base::schedule::takes_part())
    base::schedule::sleep(this, lock, std::chrono::steady_clock::time_point::max());
  else
    work_.wait(lock);
  if (asleep_ || !base::schedule::is_on()) return;
  // wake() may have found the worker in a sleep that has begun before the schedule.
  lock.unlock();
  base::schedule::come(this);
  lock.lock();
}

void QueueWorker::wake() noexcept {
  // The schedule knows of the worker before it can run: a worker that nobody expects gets another number.
  base::schedule::wake_one(this);
  work_.notify_one();
}

void QueueWorker::wake_if_tasks_pile_up(std::uint64_t sequence) {
  constexpr std::uint64_t kLook = 16;          // the clock is looked at for every so many tasks
  constexpr std::int64_t kPatience = 300'000;  // nanoseconds
  // With a schedule, every task wakes the worker, because time must not decide.
  if (sequence % kLook != 0 || queue_.token_.held() || base::schedule::is_on()) return;
  Lock lock(queue_.mutex_);
  if (queue_.items_.deferred_for() < kPatience) return;
  lingers_.store(true, std::memory_order_relaxed);
  const bool wakes = queue_.claim_worker(true);
  lock.unlock();
  if (wakes) wake();
}

/// Waits a little for the next task of a thread that enqueues many.
void QueueWorker::linger(Lock& lock) {
  const QueueItems& items = queue_.items_;
  const std::uint64_t last = items.last_number();
  lock.unlock();
  const std::int64_t end = base::monotonic_ns() + base::spinning_for_next_task().count();
  while (items.last_number() == last && base::monotonic_ns() < end) base::cpu_pause();
  lock.lock();
  if (items.last_number() == last) lingers_.store(false, std::memory_order_relaxed);
}

void QueueWorker::close_later() {
  closing_ = true;
  if (thread_.joinable()) thread_.detach();
}

void QueueWorker::close(Lock& lock) {
  closing_ = true;
  std::thread thread = std::move(thread_);
  const bool wakes = std::exchange(asleep_, false);
  lock.unlock();
  if (wakes) wake();
  if (!thread.joinable()) return;
  if (base::schedule::is_on()) {
    // The worker needs the turn until it has ended.
    lock.lock();
    while (exists_) queue_.waiters_.sleep_until_worker_ends(lock, QueueWaiters::Time::max());
    lock.unlock();
  }
  thread.join();
}

bool QueueWorker::request_stop() {
  stopped_ = true;
  return std::exchange(asleep_, false);
}

bool QueueWorker::stop(Lock& lock, std::chrono::steady_clock::time_point end) {
  while (exists_ && thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) {
    if (queue_.waiters_.sleep_until_worker_ends(lock, end) == std::cv_status::timeout) break;
  }
  std::thread thread = std::move(thread_);
  const bool ended = !exists_;
  lock.unlock();
  if (!thread.joinable()) return ended;
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
  return ended;
}

}  // namespace vdev
