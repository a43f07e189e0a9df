#include "csrc_device/runtime/activity/recorder.hpp"

#include <atomic>
#include <new>
#include <utility>

#include "base/fork.hpp"

namespace vdev {

ActivityRecorder& ActivityRecorder::of_this_process() {
  // A forked child gets a recorder without a recording, so it keeps nothing of what it still labels.
  static base::OnePerProcess<ActivityRecorder> one;
  return one.get();
}

std::uint64_t ActivityRecorder::start(std::size_t most) {
  static std::atomic<std::uint64_t> next{1};
  Recorded given_up;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  if (under_way_ == 0) labels_wanted.fetch_add(1, std::memory_order_relaxed);
  under_way_ = next.fetch_add(1, std::memory_order_relaxed);  // nothing is published with the number
  most_ = most;
  std::swap(given_up, recorded_);
  outermost_ = nullptr;
  recording_under_way.store(under_way_, std::memory_order_relaxed);
  return under_way_;
}

Recorded ActivityRecorder::stop(std::uint64_t recording) {
  std::lock_guard lock(mutex_);
  if (recording == 0 || recording != under_way_) return {};
  under_way_ = 0;
  labels_wanted.fetch_sub(1, std::memory_order_relaxed);
  outermost_ = nullptr;
  recording_under_way.store(0, std::memory_order_relaxed);
  return std::exchange(recorded_, {});
}

void ActivityRecorder::add(Activity activity) noexcept {
  std::lock_guard lock(mutex_);
  if (under_way_ == 0 || activity.launch->recording != under_way_) return;
  if (recorded_.activities.size() >= most_) {
    ++recorded_.lost;
    return;
  }
  try {
    recorded_.activities.push_back(std::move(activity));
  } catch (const std::bad_alloc&) {
    ++recorded_.lost;
  }
}

std::shared_ptr<const ActivityRange> ActivityRecorder::outermost_range() {
  std::lock_guard lock(mutex_);
  return outermost_;
}

void ActivityRecorder::set_outermost_range(std::shared_ptr<const ActivityRange> range) {
  std::lock_guard lock(mutex_);
  outermost_ = std::move(range);
}

void ActivityRecorder::unset_outermost_range(const ActivityRange* range) {
  std::lock_guard lock(mutex_);
  if (outermost_.get() == range) outermost_ = nullptr;
}

}  // namespace vdev
