#include "csrc_device/runtime/cards/loose_points.hpp"

#include <algorithm>
#include <iterator>

namespace vdev {
namespace {

constexpr std::size_t kFewPoints = 16;

bool has_ended(const Event& point) {
  return point.reached() && !LoosePoints::failure_of(point);
}

}  // namespace

FailurePtr LoosePoints::failure_of(const Event& point) {
  auto failure = point.failure();
  if (!failure) return nullptr;
  const auto standing = failure->owner()->standing();
  return std::ranges::find(standing, failure) == standing.end() ? nullptr : failure;
}

void LoosePoints::add(const Event& point) {
  std::vector<Event>
      ended;  // destroyed without the lock, because a point may hold the last part of its queue
  std::lock_guard lock(mutex_);
  if (points_.size() >= std::max(look_at_, kFewPoints)) ended = take_ended();
  points_.push_back(point);
}

std::vector<Event> LoosePoints::all() {
  std::vector<Event> ended;
  std::lock_guard lock(mutex_);
  ended = take_ended();
  return points_;
}

/// Removes the points that need no wait any more, and returns them. The caller holds the lock.
std::vector<Event> LoosePoints::take_ended() {
  const auto first = std::ranges::partition(points_, [](const Event& point) { return !has_ended(point); });
  std::vector<Event> ended(std::make_move_iterator(first.begin()), std::make_move_iterator(first.end()));
  points_.erase(first.begin(), first.end());
  look_at_ = 2 * points_.size();
  return ended;
}

}  // namespace vdev
