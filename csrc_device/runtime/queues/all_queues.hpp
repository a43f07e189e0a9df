// What concerns every queue of the process: its exit, the timer of deferred tasks, and how far all have come.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace vdev {

class Queue;

/// A queue calls these when it is made and when it is destroyed.
void add_to_all_queues(Queue* queue);
void remove_from_all_queues(Queue* queue);

/// Returns the queues alive.
std::vector<std::shared_ptr<Queue>> queues_alive();

/// Returns the number of queues alive that compute.
int queues_computing();

/// Calls Queue::prompt() for every queue alive. Returns whether any call returned true.
bool prompt_all_queues(std::int64_t nanoseconds);

/// Gives up the items of every queue alive, then calls Queue::stop() for each, within `nanoseconds`
/// altogether.
void stop_all_queues(std::int64_t nanoseconds) noexcept;

/// Says how far each queue of the process had been filled when the object was made. Thread-safe.
class QueuePoints {
 public:
  QueuePoints();
  /// Returns whether every queue has come that far, or is gone.
  bool passed() const;

 private:
  std::vector<std::pair<std::weak_ptr<Queue>, std::uint64_t>> points_;
};

}  // namespace vdev
