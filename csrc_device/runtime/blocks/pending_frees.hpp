// Blocks that were freed while streams other than their own may still use them.
#pragma once

#include <deque>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc_device/runtime/blocks/block.hpp"
#include "csrc_device/runtime/event.hpp"

namespace vdev {

/// Holds freed blocks, each with the points after which the streams no longer use it. Guarded by the
/// allocator's mutex.
class PendingFrees {
 public:
  /// Adds the points at which the streams that use the block are now. Returns whether all are reached
  /// already, so that the block is not kept here.
  bool add(Block* block);
  /// Calls `release` for each block whose points are all reached, and takes it out. Returns the reached
  /// points, for the caller to destroy without the lock: with a point goes the error that it carries, whose
  /// destructor may take other locks.
  template <class Release>
  std::vector<Event> collect(const Release& release) {
    std::vector<Event> reached;
    for (auto it = by_queue_.begin(); it != by_queue_.end();) {
      auto& waiting = it->second;
      // The points are in the order of the stream: if one is not reached, none behind it is.
      while (!waiting.empty() && waiting.front().point.reached()) {
        Block* block = waiting.front().block;
        reached.push_back(std::move(waiting.front().point));
        waiting.pop_front();
        if (--block->points_to_come == 0) release(block);
      }
      it = waiting.empty() ? by_queue_.erase(it) : std::next(it);
    }
    return reached;
  }
  /// Returns the last point of each stream.
  std::vector<Event> last_points() const;
  template <class Each>
  void for_each(const Each& each) const {
    for (const auto& [queue, waiting] : by_queue_) {
      for (const auto& entry : waiting) each(entry.block);
    }
  }

 private:
  struct Waiting {
    Block* block;
    Event point;
  };
  std::unordered_map<Queue*, std::deque<Waiting>> by_queue_;
};

}  // namespace vdev
