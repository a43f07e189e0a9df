// What the allocator tells of itself: its segments and blocks, and the events that were recorded.
#include <algorithm>
#include <map>

#include "csrc_device/runtime/allocator/caching_allocator_impl.hpp"
#include "csrc_device/runtime/error.hpp"

namespace vdev {

void CachingAllocator::Impl::note(AllocatorEvent::Action action, const Block& block, const CallSite& site) {
  if (!AllocatorHistory::recording()) return;
  history.add({.action = action,
               .address = reinterpret_cast<std::uintptr_t>(arena.base() + block.offset),
               .size = block.size,
               .site = site,
               .stream = block.pool->stream(),
               .pool = block.pool->number},
              gone);
}

AllocatorSnapshot CachingAllocator::Impl::snapshot() const {
  std::map<std::size_t, const Block*> blocks;  // by offset, which no two blocks share
  const auto add = [&](const Block* block) { blocks.emplace(block->offset, block); };
  for (const auto& [at, block] : live) add(block);
  for (const auto& [queue, waiting] : pending) {
    for (const auto& entry : waiting) add(entry.block);
  }
  for (const auto& [key, pool] : pools) {
    for (const auto* free : {&pool->small, &pool->large}) std::ranges::for_each(*free, add);
  }
  AllocatorSnapshot result;
  const auto address_of = [&](const Block& block) {
    return reinterpret_cast<std::uintptr_t>(arena.base() + block.offset);
  };
  const Segment* current = nullptr;
  for (const auto& [offset, block] : blocks) {
    if (block->segment != current) {
      current = block->segment;
      result.segments.push_back({.address = address_of(*block),
                                 .size = current->size,
                                 .stream = block->pool->stream(),
                                 .pool = block->pool->number,
                                 .small = current->small,
                                 .site = current->site,
                                 .blocks = {}});
    }
    const bool freed = block->freed_while_lent || block->points_to_come != 0;
    result.segments.back().blocks.push_back({.address = address_of(*block),
                                             .size = block->size,
                                             .requested = block->in_use ? block->requested : 0,
                                             .state = !block->in_use ? BlockInfo::State::inactive
                                                      : freed        ? BlockInfo::State::awaiting_free
                                                                     : BlockInfo::State::allocated,
                                             .site = block->site});
  }
  result.events = history.events();
  return result;
}

AllocatorSnapshot CachingAllocator::snapshot(bool notes_event) {
  if (impl_->made.inherited()) throw BadFork();
  const CallSite site = call_site(HistorySettings::Sites::allocations);
  Locked locked(*impl_);
  locked.reached = impl_->collect_pending();
  AllocatorSnapshot result = impl_->snapshot();
  if (notes_event && AllocatorHistory::recording()) {
    impl_->history.add({.action = AllocatorEvent::Action::snapshot,
                        .address = 0,
                        .size = static_cast<std::size_t>(impl_->stats.reserved_bytes.current),
                        .site = site},
                       impl_->gone);
  }
  return result;
}

CallSite CachingAllocator::site_of(const std::byte* p) const {
  if (impl_->made.inherited()) return nullptr;
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->live.find(p);
  return found == impl_->live.end() ? nullptr : found->second->site;
}

void CachingAllocator::clear_history() {
  if (impl_->made.inherited()) return;
  Locked locked(*impl_);
  impl_->history.clear(impl_->gone);
}

}  // namespace vdev
