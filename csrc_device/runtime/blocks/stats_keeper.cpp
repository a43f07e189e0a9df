#include "csrc_device/runtime/blocks/stats_keeper.hpp"

namespace vdev {

void StatsKeeper::reserved(const Segment& segment, PoolNumber pool) {
  stats_.reserved_bytes.add(segment.small, segment.size);
  stats_.segment.add(segment.small, 1);
  if (pool >= kFirstPrivatePool) reserved_by_pool_[pool].add(segment.small, segment.size);
  if (segment.oversize) stats_.oversize_segments.add(1);
}

void StatsKeeper::returned(const Segment& segment, PoolNumber pool) {
  if (segment.oversize) stats_.oversize_segments.take(1);
  if (pool >= kFirstPrivatePool) reserved_by_pool_[pool].take(segment.small, segment.size);
  stats_.reserved_bytes.take(segment.small, segment.size);
  stats_.segment.take(segment.small, 1);
}

std::vector<AllocatorStats::Figure*> StatsKeeper::every_figure() {
  std::vector<AllocatorStats::Figure*> all{&stats_.oversize_allocations, &stats_.oversize_segments};
  const auto add_all = [&](AllocatorStats::Figures& f) {
    all.insert(all.end(), {&f, &f.small_pool, &f.large_pool});
  };
  for (auto* f : {&stats_.allocated_bytes, &stats_.requested_bytes, &stats_.scratch_bytes,
                  &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes,
                  &stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split})
    add_all(*f);
  for (auto& [pool, figures] : reserved_by_pool_) add_all(figures);
  return all;
}

void StatsKeeper::reset_accumulated() {
  for (auto* f : every_figure()) f->allocated = f->freed = 0;
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  std::erase_if(reserved_by_pool_, [](const auto& entry) { return entry.second.current == 0; });
}

void StatsKeeper::reset_peaks() {
  for (auto* f : every_figure()) f->peak = f->current;
}

}  // namespace vdev
