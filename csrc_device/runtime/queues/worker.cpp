// The worker threads of the queues: when they start, sleep, wake up and end.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/signals.hpp"
#include "base/spinning.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/host_waits.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/deferred_task_timer.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"

namespace vdev {
namespace {

/// Lists every queue alive, for the exit of the process and for the timer of deferred tasks.
struct Registry {
  std::mutex mutex;
  std::unordered_set<Queue*> queues;
};

Registry& registry() {
  static base::OnePerProcess<Registry> one;
  return one.get();
}

}  // namespace

std::vector<std::shared_ptr<Queue>> queues_alive() {
  std::vector<std::shared_ptr<Queue>> alive;
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (Queue* queue : all.queues) {
    // The pointer is null if the queue is just being destroyed. Such a queue has no worker any more.
    if (auto held = queue->weak_from_this().lock()) alive.push_back(std::move(held));
  }
  return alive;
}

std::shared_ptr<Queue> Queue::make(std::string name, bool blocking, int card, std::int64_t stream,
                                   int priority) {
  auto queue = std::make_shared<Queue>(std::move(name), blocking, card, stream, priority);
  if (queue->leads_ != nullptr) queue->leads_->add(queue);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.queues.insert(queue.get());
  return queue;
}

Queue::~Queue() {
  if (deferred_ > 0 && !blocking_ && !inherited()) waiter_came();
  if (shown_busy_ && !inherited()) leads_->count_busy(-1);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.queues.erase(this);
}

/// Makes sure that a worker runs the items of a queue that no thread runs. Returns true when the caller must
/// notify work_ once it has released the lock. The caller holds the lock.
bool Queue::claim_worker(bool even_if_not_urgent) {
  // A thread that runs items checks again when it stops.
  if (running_.load(std::memory_order_relaxed)) return false;
  if (urgent_ == 0 && !closing_ && (items_.empty() || !even_if_not_urgent)) return false;
  if (!worker_exists_) {
    if (!items_.empty() && !stopped_) start_worker();
    return false;
  }
  return std::exchange(worker_asleep_, false);
}

/// Starts the worker. If the system has no thread to give, waiters run the items. The caller holds the lock.
void Queue::start_worker() {
  base::SignalsBlocked blocked;
  if (worker_.joinable()) worker_.join();  // this worker has ended
  try {
    worker_ = std::thread([self = shared_from_this()] { self->work(); });
  } catch (const std::system_error&) {
    return;
  }
  pthread_setname_np(worker_.native_handle(), name_.substr(0, 15).c_str());
  worker_exists_ = true;
  if (closing_) worker_.detach();  // the Stream is gone, and with it the thread that would join the worker
}

/// Waking the worker, and sharing the queue with it, costs as much as many small tasks do. So a short
/// sequence of tasks is left to the thread that will wait for it (Start::kSoon).
void Queue::wake_worker_if_tasks_pile_up(std::uint64_t sequence) {
  constexpr std::uint64_t kLook = 16;          // the clock is looked at for every so many tasks
  constexpr std::int64_t kPatience = 300'000;  // nanoseconds
  if (sequence % kLook != 0 || running_.load(std::memory_order_relaxed)) return;
  Lock lock(mutex_);
  if (deferred_ == 0 || base::monotonic_ns() - deferred_at_ < kPatience) return;
  lingers_.store(true, std::memory_order_relaxed);
  const bool wake = claim_worker(true);
  lock.unlock();
  if (wake) work_.notify_one();
}

/// Waits a little for the next task of a thread that enqueues many. The caller holds the lock.
void Queue::linger(Lock& lock) {
  constexpr std::int64_t kLinger = 50'000;  // nanoseconds
  const std::uint64_t last = pushed_.load(std::memory_order_relaxed);
  lock.unlock();
  const std::int64_t end = base::monotonic_ns() + kLinger;
  while (pushed_.load(std::memory_order_relaxed) == last && base::monotonic_ns() < end) base::cpu_pause();
  lock.lock();
  if (pushed_.load(std::memory_order_relaxed) == last) lingers_.store(false, std::memory_order_relaxed);
}

namespace {
thread_local bool is_worker = false;
}  // namespace

bool Queue::on_worker() noexcept {
  return is_worker;
}

void Queue::work() {
  is_worker = true;
  Lock lock(mutex_);
  while (true) {
    const bool taken = running_.load(std::memory_order_relaxed);
    if (stopped_ || (closing_ && items_.empty() && !taken)) break;
    if (!items_.empty() && !taken) {
      run(lock, kNever, Runner::kWorker);
      lock.lock();
      continue;
    }
    if (!stopped_ && !taken && lingers_.load(std::memory_order_relaxed)) {
      linger(lock);
      continue;
    }
    worker_asleep_ = true;
    while (worker_asleep_) work_.wait(lock);
  }
  worker_exists_ = false;
  lock.unlock();
  progress_.notify_all();
}

bool Queue::prompt(std::int64_t nanoseconds) {
  if (inherited()) return false;
  {
    Lock lock(mutex_);
    const bool helped = deferred_ == 0 || running_.load(std::memory_order_relaxed);
    if (helped || base::monotonic_ns() - deferred_at_ < nanoseconds) return false;
  }
  nudge();
  return true;
}

bool prompt_all_queues(std::int64_t nanoseconds) {
  bool any = false;
  for (const auto& queue : queues_alive()) any |= queue->prompt(nanoseconds);
  return any;
}

int queues_computing() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return static_cast<int>(
      std::ranges::count_if(all.queues, [](const Queue* queue) { return queue->computes(); }));
}

bool queues_stand_still(const std::vector<pthread_t>& blocked) {
  const auto alive = queues_alive();
  return std::all_of(alive.begin(), alive.end(),
                     [&](const auto& queue) { return queue->stands_still(blocked); });
}

void Queue::close() {
  if (inherited()) return;
  if (running_here()) {
    Lock lock(mutex_);
    closing_ = true;
    if (worker_.joinable()) worker_.detach();
    // run() wakes the worker when the task has returned, and the worker ends when nothing is left.
    return;
  }
  std::thread worker;
  Lock lock(mutex_);
  while (!items_.empty() || running_.load(std::memory_order_relaxed)) {
    lock.unlock();
    help_to_the_end(last());
    lock.lock();
  }
  closing_ = true;
  // No thread can raise the failures any more. They are destroyed here and not in ~Queue, which runs wherever
  // the last Event is destroyed.
  const auto failures = std::exchange(failures_, {});
  worker = std::move(worker_);
  const bool wake = std::exchange(worker_asleep_, false);
  lock.unlock();
  if (wake) work_.notify_one();
  if (worker.joinable()) worker.join();
}

void Queue::request_stop() {
  Lock lock(mutex_);
  stopped_ = true;
  const bool wake = std::exchange(worker_asleep_, false);
  lock.unlock();
  if (wake) work_.notify_one();
}

bool Queue::stop(std::int64_t nanoseconds) {
  if (inherited()) return true;
  request_stop();
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(std::max(nanoseconds, std::int64_t{0}));
  std::thread worker;
  Lock lock(mutex_);
  while (worker_exists_ && worker_.joinable() && worker_.get_id() != std::this_thread::get_id()) {
    if (progress_.wait_until(lock, deadline) == std::cv_status::timeout) break;
  }
  worker = std::move(worker_);
  const bool ended = !worker_exists_;
  lock.unlock();
  if (!worker.joinable()) return ended;
  if (ended) {
    worker.join();
  } else {
    worker.detach();
  }
  return ended;
}

// What is queued when the interpreter exits does not run: abandon() (in queue.cpp) gives it up, so that
// nobody reads what it should have written, and threads that wait for it go on. The groups have left before
// (shutdown_all() in csrc_pg/process_group.cpp), so no peer waits for what is dropped. A task that runs may
// finish until the deadline, which vdev::shutdown() sets two seconds ahead; after it, stop() detaches the
// worker's thread.
void stop_all_queues(std::int64_t nanoseconds) noexcept {
  const std::int64_t deadline = base::monotonic_ns() + nanoseconds;
  stop_deferred_task_timer();
  const auto alive = queues_alive();
  const auto error =
      std::make_exception_ptr(Error("the process ends, and gives up what its streams have not run yet"));
  for (auto& queue : alive) {
    queue->abandon(error);
    queue->request_stop();
  }
  for (auto& queue : alive) queue->stop(deadline - base::monotonic_ns());
}

}  // namespace vdev
