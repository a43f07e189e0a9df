#include "csrc_device/runtime/blocks/block_cache.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "csrc_device/runtime/memory/memory_clock.hpp"

namespace vdev {

BlockCache::~BlockCache() {
  for (const Block* block : all()) delete block;
}

std::vector<Block*> BlockCache::all() const {
  std::vector<Block*> blocks;
  const auto add = [&](Block* block) { blocks.push_back(block); };
  live.for_each(add);
  pending.for_each(add);
  pools.for_each([&](const Pool& pool) {
    std::ranges::for_each(pool.small, add);
    std::ranges::for_each(pool.large, add);
  });
  // A pending block is there once for each stream that it waits for.
  std::ranges::sort(blocks, {}, &Block::offset);
  const auto repeated = std::ranges::unique(blocks);
  blocks.erase(repeated.begin(), repeated.end());
  return blocks;
}

void BlockCache::note(AllocatorEvent::Action action, const Block& block, const CallSite& site) {
  if (!AllocatorHistory::recording()) return;
  history.add({.action = action,
               .address = reinterpret_cast<std::uintptr_t>(address(block)),
               .size = block.size,
               .site = site,
               .stream = block.pool->stream(),
               .pool = block.pool->number});
}

Block* BlockCache::take_segment(Pool& pool, const BlockRequest& request) {
  const bool small = request.small;
  const std::size_t usual = segment_size(request.size, request.settings);
  // If there is no room for the usual size, there may be for the exact one.
  const std::size_t exact = small ? usual : (request.size + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
  Segment* segment = segments.take(usual, small);
  if (!segment) segment = segments.take(exact, small);
  if (!segment) return nullptr;
  segment->site = request.site;
  segment->oversize = segment->size >= request.settings.max_split_size;
  auto* block = new Block;
  block->offset = segment->offset;
  block->size = segment->size;
  block->segment = segment;
  block->pool = &pool;
  ++pool.segments;
  stats.reserved(*segment, pool.number);
  note(AllocatorEvent::Action::segment_alloc, *block, request.site);
  return block;
}

void BlockCache::split(Block* block, const BlockRequest& request) {
  const bool small = request.small;
  const std::size_t size = request.size, rest = block->size - size;
  if (!block->whole_segment()) stats.no_longer_split_off(*block);
  const bool of_use =
      small ? rest >= kBlockUnit : rest > kSmallLimit && size < request.settings.max_split_size;
  if (!of_use || !block->pool->splits) return;
  auto* remainder = new Block;
  remainder->offset = block->offset + size;
  remainder->size = rest;
  remainder->segment = block->segment;
  remainder->pool = block->pool;
  remainder->freed_at = block->freed_at;
  remainder->backed = block->backed - std::min(block->backed, size);
  block->backed = std::min(block->backed, size);
  remainder->previous = block;
  remainder->next = block->next;
  if (block->next) block->next->previous = remainder;
  block->next = remainder;
  block->size = size;
  block->pool->free_blocks(small).insert(remainder);
  stats.split_off(*remainder);
}

void BlockCache::hand_out(Block* block, const BlockRequest& request) {
  block->in_use = true;
  block->born = MemoryClock::next();
  block->requested = request.bytes;
  block->scratch = request.scratch;
  block->oversize = block->size >= request.settings.max_split_size;
  live.add(address(*block), block);
  stats.handed_out(*block);
  block->site = request.site;
  note(AllocatorEvent::Action::alloc, *block, request.site);
}

void BlockCache::take_back(Block* block) {
  live.remove(address(*block));
  stats.freed(*block);
}

void BlockCache::adopt(Block* block) {
  stats.adopted(*block);
  block->scratch = false;
  stats.handed_out(*block);
}

void BlockCache::free(Block* block, Queues& users, const CallSite& site) {
  take_back(block);
  note(AllocatorEvent::Action::free_requested, *block, site ? site : block->site);
  const bool unused = pending.add(block);
  std::ranges::move(block->users, std::back_inserter(users));
  block->users.clear();
  if (unused) make_free(block);
}

void BlockCache::make_free(Block* block) {
  note(AllocatorEvent::Action::free_completed, *block, block->site);
  history.drop(std::exchange(block->site, nullptr));
  stats.free_for_use(*block);
  block->in_use = block->scratch = false;
  block->freed_at = searches;
  merge(block, block->previous);
  merge(block, block->next);
  block->pool->free_blocks(block->segment->small).insert(block);
  if (!block->whole_segment()) stats.split_off(*block);
}

/// Makes `neighbour`, if it is free, a part of `block`.
void BlockCache::merge(Block* block, Block* neighbour) {
  if (!neighbour || neighbour->in_use) return;
  neighbour->pool->free_blocks(neighbour->segment->small).erase(neighbour);
  stats.no_longer_split_off(*neighbour);
  const Block* front = neighbour == block->previous ? neighbour : block;
  const Block* back = neighbour == block->previous ? block : neighbour;
  block->backed = front->backed + (front->backed == front->size ? back->backed : 0);
  if (neighbour == block->previous) {
    block->offset = neighbour->offset;
    block->previous = neighbour->previous;
    if (block->previous) block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next) block->next->previous = block;
  }
  block->size += neighbour->size;
  delete neighbour;
}

std::vector<Event> BlockCache::collect_pending() {
  return pending.collect([this](Block* block) { make_free(block); });
}

void BlockCache::return_segment(Block* block) {
  Segment& segment = *block->segment;
  segments.discard(segment);  // comes first, because it may throw
  note(AllocatorEvent::Action::segment_free, *block, segment.site);
  history.drop(std::exchange(segment.site, nullptr));
  block->pool->free_blocks(segment.small).erase(block);
  --block->pool->segments;
  stats.returned(segment, block->pool->number);
  segments.forget(&segment);
  delete block;
}

Queues BlockCache::return_idle_segments(const BlockFilter& wanted) {
  Queues busy;
  pools.for_each([&](Pool& pool) {
    std::vector<Block*> whole;
    for (const auto* blocks : {&pool.small, &pool.large}) {
      std::ranges::copy_if(*blocks, std::back_inserter(whole), [&](const Block* block) {
        return block->whole_segment() && (!wanted || wanted(*block));
      });
    }
    if (whole.empty() || !pools.may_lose_segments(pool, busy)) return;
    for (Block* block : whole) return_segment(block);
  });
  pools.forget_unused();
  return busy;
}

}  // namespace vdev
