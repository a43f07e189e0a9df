#include "csrc_device/runtime/blocks/pending_frees.hpp"

#include <utility>

#include "csrc_device/runtime/queue.hpp"

namespace vdev {

bool PendingFrees::add(Block* block) {
  for (const auto& queue : block->users) {
    // Blocks of a captured queue are used in the order of the host when the graph is replayed (graph.cpp).
    Event point(queue->record_uncaptured());
    if (point.reached()) continue;
    ++block->points_to_come;
    by_queue_[queue.get()].push_back({block, std::move(point)});
  }
  return block->points_to_come == 0;
}

std::vector<Event> PendingFrees::last_points() const {
  std::vector<Event> points;
  for (const auto& [queue, waiting] : by_queue_) {
    if (!waiting.empty()) points.push_back(waiting.back().point);
  }
  return points;
}

}  // namespace vdev
