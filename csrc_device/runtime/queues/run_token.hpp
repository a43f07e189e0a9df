// Which thread runs the items of a queue.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <vector>

#include "csrc_device/runtime/queues/queue_items.hpp"

namespace vdev {

/// The single token of a queue. The thread that holds it runs the items; a Promise holds it so that no thread
/// does. It is written under the queue's lock, which the caller of a function holds, except for held() and
/// computes(). These are relaxed: without the lock, they are hints.
class RunToken {
 public:
  bool held() const { return held_.load(std::memory_order_relaxed); }
  /// Returns whether a task that never waits is running.
  bool computes() const { return computes_.load(std::memory_order_relaxed); }

  void take() {
    held_.store(true, std::memory_order_relaxed);
    holder_ = pthread_self();
  }
  void take_for_promise(bool watched) {
    held_.store(true, std::memory_order_relaxed);
    watched_promise_ = watched;
  }
  void give_back() { held_.store(false, std::memory_order_relaxed); }
  bool held_by_watched_promise() const { return held() && watched_promise_; }
  /// Returns whether one of `threads` holds the token, which is held.
  bool held_by_one_of(const std::vector<pthread_t>& threads) const;

  /// Call these when the holder begins and ends an item. end() puts what the item has waited for in `trash`.
  void begin(const QueueItem& item);
  void end(Trash& trash);
  /// Returns the queue of the point that the running item waits for, or null if the item waits for none.
  std::shared_ptr<Queue> blocked_on() const;

  /// Between the parts of a task, the core that the task counts for is free. The holder calls these without
  /// the lock. pause() returns whether a task that never waits is running.
  bool pause() { return computes_.exchange(false, std::memory_order_relaxed); }
  void resume() { computes_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> held_{false};
  std::atomic<bool> computes_{false};
  bool watched_promise_ = false;         // a Promise holds it whose fulfiller is watched
  pthread_t holder_{};                   // the thread that holds the token; not for a Promise
  std::shared_ptr<Completion> awaited_;  // the point that the item under way waits for
};

}  // namespace vdev
