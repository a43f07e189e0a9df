// The keeping of an allocator's figures.
#pragma once

#include <map>
#include <vector>

#include "csrc_device/runtime/blocks/allocator_stats.hpp"
#include "csrc_device/runtime/blocks/block.hpp"
#include "csrc_device/runtime/blocks/pool_number.hpp"
#include "csrc_device/runtime/blocks/segments.hpp"

namespace vdev {

/// Keeps the figures of an allocator. Guarded by the allocator's mutex.
class StatsKeeper {
 public:
  const AllocatorStats& stats() const { return stats_; }
  /// Returns what is reserved for each private pool, also for those that are gone (with current 0) until
  /// reset_accumulated().
  const std::map<PoolNumber, AllocatorStats::Figures>& reserved_by_pool() const { return reserved_by_pool_; }
  void reset_accumulated();
  void reset_peaks();

  void reserved(const Segment& segment, PoolNumber pool);
  void returned(const Segment& segment, PoolNumber pool);
  /// Counts a block that is handed out, to a kernel or to the program as the block says.
  void handed_out(const Block& block) {
    const bool small = block.segment->small;
    if (block.scratch) {
      stats_.scratch_bytes.add(small, block.size);
      return;
    }
    stats_.allocated_bytes.add(small, block.size);
    stats_.requested_bytes.add(small, block.requested);
    stats_.active_bytes.add(small, block.size);
    stats_.allocation.add(small, 1);
    stats_.active.add(small, 1);
    if (block.oversize) stats_.oversize_allocations.add(1);
  }
  /// Counts a block that was handed out as freed. The program's blocks stay active until free_for_use().
  void freed(const Block& block) {
    const bool small = block.segment->small;
    if (block.scratch) {
      stats_.scratch_bytes.take(small, block.size);
      return;
    }
    stats_.allocated_bytes.take(small, block.size);
    stats_.requested_bytes.take(small, block.requested);
    stats_.allocation.take(small, 1);
    if (block.oversize) stats_.oversize_allocations.take(1);
  }
  /// Counts a freed block as one that no stream uses any more.
  void free_for_use(const Block& block) {
    if (block.scratch) return;
    stats_.active.take(block.segment->small, 1);
    stats_.active_bytes.take(block.segment->small, block.size);
  }
  /// Counts a kernel's block as not handed out, because it becomes the program's.
  void adopted(const Block& block) { stats_.scratch_bytes.take(block.segment->small, block.size); }
  /// Counts a free block that is a part of its segment, and one that is so no longer.
  void split_off(const Block& block) {
    stats_.inactive_split.add(block.segment->small, 1);
    stats_.inactive_split_bytes.add(block.segment->small, block.size);
  }
  void no_longer_split_off(const Block& block) {
    stats_.inactive_split.take(block.segment->small, 1);
    stats_.inactive_split_bytes.take(block.segment->small, block.size);
  }

  void count_retry() { ++stats_.num_alloc_retries; }
  void count_out_of_memory() { ++stats_.num_ooms; }
  void count_synchronisation() { ++stats_.num_sync_all_streams; }

 private:
  std::vector<AllocatorStats::Figure*> every_figure();

  AllocatorStats stats_;
  std::map<PoolNumber, AllocatorStats::Figures> reserved_by_pool_;  // of private pools
};

}  // namespace vdev
