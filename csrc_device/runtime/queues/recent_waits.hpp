// The points for which a queue was made to wait last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

namespace vdev {

struct Completion;

/// Remembers the last few points for which a queue waits: everything behind the first wait for a point comes
/// after the point, so a second wait would only cost time. A message waits again for earlier messages that
/// the program has waited for, for example. The caller holds the queue's lock.
class RecentWaits {
 public:
  /// Adds a point. Returns false if it is there already.
  bool add(const std::shared_ptr<Completion>& point) {
    // Compares control blocks: the address of a point that is gone may be another's now.
    const bool known = std::ranges::any_of(
        points_, [&](const auto& other) { return !other.owner_before(point) && !point.owner_before(other); });
    if (!known) points_[next_++ % points_.size()] = point;
    return !known;
  }
  /// Call this when waits are given up that have not ended.
  void forget() { points_ = {}; }

 private:
  std::array<std::weak_ptr<Completion>, 4> points_;
  std::size_t next_ = 0;
};

}  // namespace vdev
