// What programs can set about the cards' allocators (PYTORCH_ALLOC_CONF), and the sizes that follow from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace vdev {

/// Holds torch's settings of the same names, with the values and meanings that they have for CUDA.
struct AllocatorSettings {
  std::size_t max_split_size = SIZE_MAX;  // free blocks from this size on are not split
  // What such a block may have above the request.
  std::size_t max_non_split_rounding = std::size_t{20} << 20;
  double garbage_collection_threshold = 0;                 // a fraction of the limit; 0: nothing is collected
  std::size_t large_segment_size = std::size_t{20} << 20;  // of the segments that large requests share
  std::array<std::size_t, 16> power2_divisions = {};  // for sizes from 1 MiB, 2 MiB, 4 MiB ... on; 0 is none
};

/// Sets what all allocators of the process do from now on. Thread-safe.
void set_allocator_settings(const AllocatorSettings& settings);
/// Returns the present settings. The reference stays valid, and the object does not change. Thread-safe.
const AllocatorSettings& allocator_settings() noexcept;

/// Returns the size of the block for a request of `bytes` bytes.
std::size_t block_size(std::size_t bytes, const AllocatorSettings& settings);
/// Returns the size of the segment that is taken for a block of `size` bytes.
std::size_t segment_size(std::size_t size, const AllocatorSettings& settings);

}  // namespace vdev
