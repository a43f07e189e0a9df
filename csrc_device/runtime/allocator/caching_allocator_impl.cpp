#include "csrc_device/runtime/allocator/caching_allocator_impl.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "csrc_device/runtime/allocator/out_of_memory.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/page_budget.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

std::byte* CachingAllocator::Impl::attempt(Lock& lock, Pool& pool, const BlockRequest& request, bool collects,
                                           Queues& users) {
  Block* block = find(pool, request, users);
  if (!block && collects) collect_garbage(lock, request.settings);
  if (!block) block = blocks.take_segment(pool, request);
  if (!block) block = retry(lock, pool, request, users);
  if (!block) block = blocks.pools.take_fit_of_private(pool, request);
  if (!block) throw_out_of_memory(request);
  blocks.split(block, request);
  return hand_out(lock, block, request);
}

Block* CachingAllocator::Impl::find(Pool& pool, const BlockRequest& request, Queues& users) {
  if (Block* block = pool.take_fit(request)) return block;
  if (!lent.is_limbo_empty()) {
    collect_lent(lent.limbo_size(), users);
    if (Block* block = pool.take_fit(request)) return block;
  }
  if (blocks.pools.count() > 1) {
    blocks.pools.adopt_orphans(pool);
    return pool.take_fit(request);
  }
  return nullptr;
}

/// Books the block and backs its first bytes, as many as the request has, with pages. The pages are taken
/// without the lock, because that takes long and no other thread uses the block. Returns null, and the block
/// is free again, if the machine does not have the memory.
std::byte* CachingAllocator::Impl::hand_out(Lock& lock, Block* block, const BlockRequest& request) {
  blocks.hand_out(block, request);
  std::byte* at = blocks.address(*block);
  if (request.size <= block->backed) return at;
  const auto missing = block->segment->back(block->offset + block->backed, request.size - block->backed);
  const std::size_t backed_before = std::exchange(block->backed, request.size);
  if (missing.empty()) return at;
  lock.unlock();
  const bool ok = std::ranges::all_of(
      missing, [this](const auto& range) { return back_with_pages(arena, range.first, range.second); });
  if (ok) return at;
  lock.lock();
  block->backed = backed_before;
  block->segment->forget(missing);
  blocks.take_back(block);
  blocks.make_free(block);
  return nullptr;
}

void CachingAllocator::Impl::collect_lent(std::size_t most, Queues& users) {
  lent.collect(most, [&](Block* block) { blocks.free(block, users, nullptr); });
}

/// Waits for the points of all pending blocks. Does nothing inside a task, because a point might in turn wait
/// for the end of that task.
void CachingAllocator::Impl::wait_for_pending(Lock& lock) {
  auto points = blocks.pending.last_points();
  if (points.empty() || Queue::inside_task()) return;
  lock.unlock();
  for (const auto& point : points) point.wait();
  points.clear();
  lock.lock();
  points = blocks.collect_pending();
  lock.unlock();
  points.clear();
  lock.lock();
}

/// Returns whole free segments, as a synchronising cudaFree does: those that are wanted, or all. The streams
/// that use them are drained first, without the lock, because their tasks may allocate and free.
void CachingAllocator::Impl::return_segments(Lock& lock, const BlockFilter& wanted) {
  constexpr int kRounds = 3;  // other threads may go on enqueuing
  for (int round = 0; round < kRounds; ++round) {
    const auto busy = blocks.return_idle_segments(wanted);
    if (busy.empty() || Queue::inside_task()) return;  // as for wait_for_pending()
    lock.unlock();
    for (const auto& queue : busy) queue->help_until(queue->last());
    lock.lock();
  }
  blocks.return_idle_segments(wanted);
}

void CachingAllocator::Impl::return_oversize_segments(Lock& lock, const Pool& pool,
                                                      const BlockRequest& request) {
  const auto chosen = pool.oversize_blocks_for(request);
  if (chosen.empty()) return;
  return_segments(lock, [&](const Block& block) { return chosen.contains(&block); });
}

/// Returns large segments of the program that have been free for at least as long as the average, until no
/// more than the threshold is reserved. An age is the number of requests since the block became free.
void CachingAllocator::Impl::collect_garbage(Lock& lock, const AllocatorSettings& settings) {
  const auto threshold = static_cast<std::int64_t>(settings.garbage_collection_threshold *
                                                   static_cast<double>(blocks.segments.limit()));
  const AllocatorStats::Figures& reserved = blocks.stats.stats().reserved_bytes;
  while (reserved.current > threshold) {
    const auto now = blocks.searches;
    std::uint64_t ages = 0, count = 0;
    blocks.pools.for_each([&](const Pool& pool) {
      if (pool.number != kProgramPool) return;
      for (const Block* block : pool.large) {
        if (!block->whole_segment()) continue;
        ages += now - block->freed_at;
        ++count;
      }
    });
    const auto freed_before = reserved.freed;
    return_segments(lock, [&](const Block& block) {
      return block.pool->number == kProgramPool && !block.segment->small && block.freed_at <= now &&
             (now - block.freed_at) * count >= ages;
    });
    if (reserved.freed == freed_before) return;
  }
}

/// Looks again for a block after each of the steps that may make room, from the cheapest to the dearest.
Block* CachingAllocator::Impl::retry(Lock& lock, Pool& pool, const BlockRequest& request, Queues& users) {
  // Freeing other blocks does not help.
  if (request.size > blocks.segments.limit() || request.size > arena.capacity()) return nullptr;
  blocks.stats.count_retry();
  blocks.stats.count_synchronisation();
  const auto look = [&] {
    Block* block = find(pool, request, users);
    return block ? block : blocks.take_segment(pool, request);
  };
  wait_for_pending(lock);
  if (Block* block = look()) return block;
  if (request.settings.max_split_size != SIZE_MAX) {
    return_oversize_segments(lock, pool, request);
    if (Block* block = look()) return block;
  }
  return_segments(lock);
  return look();
}

void CachingAllocator::Impl::throw_out_of_memory(const BlockRequest& request, const std::string& why) {
  blocks.stats.count_out_of_memory();
  if (AllocatorHistory::recording()) {
    blocks.history.add({.action = AllocatorEvent::Action::out_of_memory,
                        .address = blocks.segments.left(),
                        .size = request.bytes,
                        .site = request.site});
  }
  throw OutOfMemory(
      out_of_memory_text(request.bytes, card, arena.capacity(), blocks.segments, blocks.stats.stats()) + why);
}

}  // namespace vdev
