// The state behind an Event: one recorded point of a queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "csrc_device/runtime/queues/failure_list.hpp"

namespace vdev {

class Queue;
struct CapturedPoint;

/// Holds the state of one recorded point of a queue.
struct Completion {
  Completion(std::shared_ptr<Queue> q, std::uint64_t s) : queue(std::move(q)), sequence(s) {}
  const std::shared_ptr<Queue> queue;
  const std::uint64_t sequence;
  /// The queue's failures. Written before reached_at. Only threads that have seen reached_at set may read
  /// them.
  FailureList failures;
  /// Set if the point was recorded in a capture. Such a point is never reached. Written before the Completion
  /// is shared.
  std::shared_ptr<const CapturedPoint> captured;
  /// The time at which the point was reached, in monotonic nanoseconds, 0 before. The release store in
  /// reach() pairs with the acquire load in reached(). It publishes `failures` and everything that the tasks
  /// before the point have written.
  std::atomic<std::int64_t> reached_at{0};

  bool reached() const { return reached_at.load(std::memory_order_acquire) != 0; }
  /// Call this once, when the point is reached, with the failures of the queue.
  void reach(const FailureList& of_queue, std::int64_t now) {
    failures = of_queue;
    reached_at.store(now, std::memory_order_release);
  }
};

}  // namespace vdev
