#include "csrc_device/runtime/queues/stream_order.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/fork.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {
namespace {

std::atomic<int> slots{1};

}  // namespace

void set_task_slots(int count) noexcept {
  // Relaxed: an older number is as good a guess.
  slots.store(std::max(1, count), std::memory_order_relaxed);
}

int task_slots() noexcept {
  return slots.load(std::memory_order_relaxed);
}

void StreamOrder::add(const std::shared_ptr<Queue>& queue) {
  std::lock_guard lock(mutex_);
  std::erase_if(queues_, [](const auto& known) { return known.expired(); });
  queues_.push_back(queue);
}

std::vector<std::shared_ptr<Queue>> StreamOrder::queues() {
  std::vector<std::shared_ptr<Queue>> alive;
  std::lock_guard lock(mutex_);
  for (const auto& known : queues_)
    if (auto queue = known.lock()) alive.push_back(std::move(queue));
  return alive;
}

void StreamOrder::give_way() {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::nanoseconds(longest_put_off.load(std::memory_order_relaxed));
  // While one queue begins its tasks, another may get some.
  for (bool any = true; any && has_high_work() && std::chrono::steady_clock::now() < end;) {
    any = false;
    for (const auto& queue : queues()) any |= queue->go_first(end);
  }
}

StreamOrder& stream_order(int card) {
  static base::OnePerProcess<std::array<StreamOrder, kMostCards>> one;
  return one.get()[static_cast<std::size_t>(card)];
}

}  // namespace vdev
