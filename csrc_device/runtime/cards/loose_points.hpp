// The points for which a synchronisation of a card waits although no stream of the card has them.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "csrc_device/runtime/event.hpp"
#include "csrc_device/runtime/failure.hpp"

namespace vdev {

/// Holds the points that were added and are not reached yet, and those with a failure to raise. Thread-safe.
class LoosePoints {
 public:
  void add(const Event& point);
  std::vector<Event> all();
  /// Returns the failure that a synchronisation raises for a reached point, or null. A failure that came
  /// after its owner was closed, such as that of a message under way when its group was destroyed, is not
  /// raised: nobody waits for that message any more, and whoever reads its memory learns of it.
  static FailurePtr failure_of(const Event& point);

 private:
  std::vector<Event> take_ended();

  std::mutex mutex_;  // guards the next two
  std::vector<Event> points_;
  // Twice the number of points that the last look kept: so add() looks at each point about once, however many
  // are under way.
  std::size_t look_at_ = 0;
};

}  // namespace vdev
