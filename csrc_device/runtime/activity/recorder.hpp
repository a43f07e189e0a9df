// Where activity is kept until the profiler takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "csrc_device/runtime/activity.hpp"

namespace vdev {

/// Holds the recording of this process. Thread-safe.
class ActivityRecorder {
 public:
  static ActivityRecorder& of_this_process();

  std::uint64_t start(std::size_t most);
  Recorded stop(std::uint64_t recording);
  /// Keeps `activity` if its recording is under way. Counts it as lost if there is no room.
  void add(Activity activity) noexcept;

  /// Returns the outermost range, which other threads work for, or null.
  std::shared_ptr<const ActivityRange> outermost_range();
  void set_outermost_range(std::shared_ptr<const ActivityRange> range);
  /// Forgets the outermost range if it is `range`.
  void unset_outermost_range(const ActivityRange* range);

 private:
  std::mutex mutex_;
  std::uint64_t under_way_ = 0;
  std::size_t most_ = 0;
  Recorded recorded_;
  std::shared_ptr<const ActivityRange> outermost_;
};

}  // namespace vdev
