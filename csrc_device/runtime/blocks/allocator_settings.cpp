#include "csrc_device/runtime/blocks/allocator_settings.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc_device/runtime/blocks/block.hpp"

namespace vdev {
namespace {

constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kLeastOwnSegment = 10 * kMiB;  // a request of this size gets a segment of its own

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

const AllocatorSettings kDefaultSettings;
std::atomic<const AllocatorSettings*> current_settings{&kDefaultSettings};

std::size_t divisions_for(std::size_t bytes, const AllocatorSettings& settings) {
  const auto intervals = static_cast<int>(settings.power2_divisions.size());
  const int interval = std::bit_width(bytes) - std::bit_width(kMiB);
  return settings.power2_divisions[static_cast<std::size_t>(std::clamp(interval, 0, intervals - 1))];
}

/// Rounds up to the next of the sizes that divide the space between two powers of two. CUDA's allocator, too,
/// takes the largest power of two in `divisions` for the number of these sizes.
std::size_t round_to_division(std::size_t bytes, std::size_t divisions) {
  const std::size_t floor = std::bit_floor(bytes);
  const std::size_t step = floor / std::bit_floor(divisions);
  return step == 0 ? std::bit_ceil(bytes) : round_up(bytes, step);
}

}  // namespace

void set_allocator_settings(const AllocatorSettings& settings) {
  static std::mutex mutex;
  static auto& all =
      *new std::vector<std::unique_ptr<AllocatorSettings>>;  // other threads may still read them
  const std::lock_guard lock(mutex);
  all.push_back(std::make_unique<AllocatorSettings>(settings));
  // Pairs with the load in allocator_settings().
  current_settings.store(all.back().get(), std::memory_order_release);
}

const AllocatorSettings& allocator_settings() noexcept {
  return *current_settings.load(std::memory_order_acquire);
}

std::size_t block_size(std::size_t bytes, const AllocatorSettings& settings) {
  if (bytes < kBlockUnit) return kBlockUnit;
  const std::size_t divisions = divisions_for(bytes, settings);
  if (divisions > 1 && bytes > kBlockUnit * divisions) return round_to_division(bytes, divisions);
  return round_up(bytes, kBlockUnit);
}

std::size_t segment_size(std::size_t size, const AllocatorSettings& settings) {
  if (size <= kSmallLimit) return kSmallSegment;
  return round_up(size < kLeastOwnSegment ? settings.large_segment_size : size, kSegmentUnit);
}

}  // namespace vdev
