// The worker thread of a queue: when it starts, sleeps, wakes up and ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace vdev {

class Queue;

/// Runs the items that no waiting thread runs, on a thread that starts with the first of them and sleeps
/// while there are none. The caller of a function holds the queue's lock, unless the comment says otherwise.
class QueueWorker {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit QueueWorker(Queue& queue) : queue_(queue) {}

  /// Returns whether the calling thread is the worker of any queue. Needs no lock.
  static bool is_this_thread() noexcept;

  bool exists() const { return exists_; }
  /// Returns whether the worker ends once the queue is empty.
  bool closing() const { return closing_; }
  /// Returns whether the worker ends, and none may be started.
  bool stopped() const { return stopped_; }

  /// Makes sure that a worker looks at the queue, on which no thread runs anything. Returns true when the
  /// caller has to call wake() once it has released the lock: a thread that is woken under the lock would
  /// sleep again on it.
  bool claim(bool has_items);
  /// Needs no lock.
  void wake() noexcept;
  /// Call this without the lock, after a task that came with Start::kSoon. Waking the worker, and sharing the
  /// queue with it, costs as much as many small tasks do. So the worker is woken only if tasks pile up; a
  /// short sequence of tasks is left to the thread that will wait for it.
  void wake_if_tasks_pile_up(std::uint64_t sequence);

  /// Lets the worker end once the queue is empty, without waiting for it.
  void close_later();
  /// Lets the worker of an empty queue end, and joins it. Releases the lock.
  void close(Lock& lock);
  /// Lets the worker end with its task. Returns true when the caller has to call wake() once it has released
  /// the lock.
  bool request_stop();
  /// Call this after request_stop(). Joins the worker, or detaches it if it has not ended at `end`. Returns
  /// whether it has ended. Releases the lock.
  bool stop(Lock& lock, std::chrono::steady_clock::time_point end);

 private:
  void start();
  void work();
  void sleep(Lock& lock);
  void linger(Lock& lock);

  Queue& queue_;
  std::condition_variable work_;  // the worker sleeps on it
  std::thread thread_;
  bool exists_ = false;
  bool asleep_ = false;
  bool closing_ = false;
  bool stopped_ = false;
  std::atomic<bool> lingers_{false};  // tasks came with Start::kSoon; relaxed, a hint for the worker
};

}  // namespace vdev
