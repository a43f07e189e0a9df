// The figures of an allocator, which torch.cuda.memory_stats shows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace vdev {

/// Holds bytes and counts since the start, and peaks since the last reset.
struct AllocatorStats {
  struct Figure {
    std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;

    void add(std::size_t amount) {
      current += static_cast<std::int64_t>(amount);
      allocated += static_cast<std::int64_t>(amount);
      peak = std::max(peak, current);
    }
    void take(std::size_t amount) {
      current -= static_cast<std::int64_t>(amount);
      freed += static_cast<std::int64_t>(amount);
    }
  };
  /// Holds the figure of all memory, and what of it lies in the segments of small and of large blocks.
  struct Figures : Figure {
    Figure small_pool, large_pool;

    void add(bool small, std::size_t amount) {
      Figure::add(amount);
      (small ? small_pool : large_pool).add(amount);
    }
    void take(bool small, std::size_t amount) {
      Figure::take(amount);
      (small ? small_pool : large_pool).take(amount);
    }
  };
  Figures allocated_bytes;  // of blocks handed out to the program, rounded to the allocator's unit
  Figures requested_bytes;  // of the same blocks, as the callers asked for
  Figures scratch_bytes;    // of blocks handed out to kernels, rounded
  Figures reserved_bytes;   // of the segments taken from the arena, for whatever
  Figures active_bytes;     // of the program's blocks handed out, or freed but still used by another stream
  Figures inactive_split_bytes;                         // of free blocks that are a part of their segments
  Figures allocation, segment, active, inactive_split;  // counts
  Figure oversize_allocations, oversize_segments;       // counts of those from max_split_size on
  std::int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0;
};

}  // namespace vdev
