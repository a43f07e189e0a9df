#include "csrc_device/runtime/queues/all_queues.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <unordered_set>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/deferred_task_timer.hpp"

namespace vdev {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_set<Queue*> queues;
};

Registry& registry() {
  static base::OnePerProcess<Registry> one;
  return one.get();
}

}  // namespace

void add_to_all_queues(Queue* queue) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.queues.insert(queue);
}

void remove_from_all_queues(Queue* queue) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.queues.erase(queue);
}

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

int queues_computing() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return static_cast<int>(
      std::ranges::count_if(all.queues, [](const Queue* queue) { return queue->computes(); }));
}

bool prompt_all_queues(std::int64_t nanoseconds) {
  bool any = false;
  for (const auto& queue : queues_alive()) any |= queue->prompt(nanoseconds);
  return any;
}

// What is queued when the interpreter exits does not run: Queue::abandon() gives it up, so that nobody reads
// what it should have written, and threads that wait for it go on. The groups have left before
// (shutdown_all() in csrc_pg), so no peer waits for what is dropped. A task that runs may finish until the
// deadline, which vdev::shutdown() sets two seconds ahead; after it, Queue::stop() detaches the worker's
// thread.
void stop_all_queues(std::int64_t nanoseconds) noexcept {
  const std::int64_t deadline = base::monotonic_ns() + nanoseconds;
  stop_deferred_task_timer();
  const auto alive = queues_alive();
  const auto error =
      std::make_exception_ptr(CardError("the process ends, and gives up what its streams have not run yet"));
  for (auto& queue : alive) {
    queue->abandon(error);
    queue->request_stop();
  }
  for (auto& queue : alive) queue->stop(deadline - base::monotonic_ns());
}

QueuePoints::QueuePoints() {
  for (const auto& queue : queues_alive()) points_.emplace_back(queue, queue->last());
}

bool QueuePoints::passed() const {
  return std::ranges::all_of(points_, [](const auto& point) {
    const auto queue = point.first.lock();
    return !queue || queue->done(point.second);
  });
}

}  // namespace vdev
