// A card's allocator: carves blocks out of the arena and keeps freed ones for the stream that used them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "csrc_device/runtime/arena.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

/// Figures as torch.cuda.memory_stats has them; bytes and counts since the start, peaks since the last reset.
struct AllocatorStats {
  struct Figure {
    std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  };
  Figure allocated_bytes;  // handed out, rounded to the allocator's unit
  Figure requested_bytes;  // as asked for
  Figure reserved_bytes;   // taken from the arena in segments
  Figure active_bytes;     // handed out, or freed but still used by another stream
  Figure inactive_split_bytes;
  Figure allocation, segment, active, inactive_split;  // counts
  std::int64_t num_alloc_retries = 0, num_ooms = 0;
};

/// Stream-aware, like CUDA's: a freed block is reused at once by the stream it was allocated for (whose order
/// makes that safe) and by others only after every stream that record_stream() named has passed the point of
/// the free. Best fit, with splitting and merging of neighbours inside a segment; small blocks (below 1 MiB)
/// live in 2 MiB segments, large ones in segments of 20 MiB and more. Pages are taken from the system in
/// bulk, but only where a block is handed out. Thread-safe.
class CachingAllocator {
 public:
  explicit CachingAllocator(Arena& arena, int card);
  ~CachingAllocator();

  /// `bytes` > 0, aligned to 512 (at least; 4096 from 1 MiB). The block belongs to `stream`.
  /// Throws OutOfMemory after having waited for blocks that other streams still use and tried empty_cache(),
  /// and BadFork in a forked child (as the others do that change something; free() does nothing there).
  std::byte* allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream);
  /// `p` as returned by allocate(); InvalidArgument otherwise. Never waits for a stream.
  void free(std::byte* p);
  /// The block at `p` is also used by `stream` up to its present end.
  void record_stream(std::byte* p, const std::shared_ptr<Stream>& stream);
  /// Size of the block at `p`, as handed out; 0 when `p` is not the start of a live block.
  std::size_t size_of(const std::byte* p) const;

  /// Returns whole free segments to the system, once the tasks that may use them have run.
  void empty_cache();
  AllocatorStats stats() const;
  void reset_accumulated_stats();
  void reset_peak_stats();
  /// Upper bound on reserved bytes (torch.vdev.set_per_process_memory_fraction); starts at the capacity.
  void set_limit(std::size_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vdev
