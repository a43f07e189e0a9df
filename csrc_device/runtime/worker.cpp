// The worker threads of the queues: when one starts, sleeps, is woken and ends.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "csrc_device/runtime/fork.hpp"
#include "csrc_device/runtime/prompter.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/signals.hpp"

namespace vdev {
namespace {

/// Every queue alive, for the exit of the process. Leaked, and made anew after a fork, since another thread
/// of the parent may have held the lock.
struct Registry {
  std::mutex mutex;
  std::unordered_set<Queue*> queues;
  const int generation = fork_generation();
};

Registry& registry() {
  static std::atomic<Registry*> current{new Registry};
  Registry* found = current.load(std::memory_order_acquire);
  while (found->generation != fork_generation()) {
    auto* fresh = new Registry;
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *found;
}

std::vector<std::shared_ptr<Queue>> queues_alive() {
  std::vector<std::shared_ptr<Queue>> alive;
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (Queue* queue : all.queues) {
    // Null for one whose last pointer is just going: it has no worker any more.
    if (auto held = queue->weak_from_this().lock()) alive.push_back(std::move(held));
  }
  return alive;
}

}  // namespace

std::shared_ptr<Queue> Queue::make(std::string name, bool blocking) {
  auto queue = std::make_shared<Queue>(std::move(name), blocking);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.queues.insert(queue.get());
  return queue;
}

Queue::~Queue() {
  if (promised_ > 0 && !blocking_ && !orphaned()) waiter_came();
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.queues.erase(this);
}

/// Makes sure that somebody comes for the items in a queue that nobody runs. True when the caller must notify
/// work_ once it has released the lock. Lock held.
bool Queue::claim_worker(bool even_if_not_urgent) {
  if (running_.load(std::memory_order_relaxed)) return false;  // the runner looks again when it stops
  if (urgent_ == 0 && !closing_ && (items_.empty() || !even_if_not_urgent)) return false;
  if (!worker_exists_) {
    if (!items_.empty() && !stopped_) start_worker();
    return false;
  }
  return std::exchange(worker_asleep_, false);
}

/// Lock held. When the system has no thread to give, waiters do the work.
void Queue::start_worker() {
  SignalsBlocked blocked;
  if (worker_.joinable()) worker_.join();  // one that has ended
  try {
    worker_ = std::thread([self = shared_from_this()] { self->work(); });
  } catch (const std::system_error&) {
    return;
  }
  pthread_setname_np(worker_.native_handle(), name_.substr(0, 15).c_str());
  worker_exists_ = true;
  if (closing_) worker_.detach();  // the Stream is gone: nobody is left to join
}

void Queue::work() {
  Lock lock(mutex_);
  while (true) {
    const bool taken = running_.load(std::memory_order_relaxed);
    if (stopped_ || (closing_ && items_.empty() && !taken)) break;
    if (!items_.empty() && !taken) {
      run(lock, kNever, true);
      lock.lock();
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
  if (orphaned()) return false;
  {
    Lock lock(mutex_);
    const bool helped = promised_ == 0 || running_.load(std::memory_order_relaxed);
    if (helped || monotonic_ns() - promised_at_ < nanoseconds) return false;
  }
  nudge();
  return true;
}

bool prompt_all_queues(std::int64_t nanoseconds) {
  bool any = false;
  for (const auto& queue : queues_alive()) any |= queue->prompt(nanoseconds);
  return any;
}

void Queue::close() {
  if (orphaned()) return;
  if (running_here()) {
    Lock lock(mutex_);
    closing_ = true;
    if (worker_.joinable()) worker_.detach();
    // run() looks for the worker when the task has returned, and the worker ends when nothing is left.
    return;
  }
  std::thread worker;
  Lock lock(mutex_);
  while (!items_.empty() || running_.load(std::memory_order_relaxed)) {
    lock.unlock();
    help_until(last());
    lock.lock();
  }
  closing_ = true;
  // Nobody is left to raise it to. Not kept for ~Queue, which runs wherever the last Event goes.
  const auto error = std::move(error_);
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
  if (orphaned()) return true;
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

void stop_all_queues(std::int64_t nanoseconds) noexcept {
  const std::int64_t deadline = monotonic_ns() + nanoseconds;
  stop_prompter();
  const auto alive = queues_alive();
  for (auto& queue : alive) {
    queue->abandon(nullptr);
    queue->request_stop();
  }
  for (auto& queue : alive) queue->stop(deadline - monotonic_ns());
}

}  // namespace vdev
