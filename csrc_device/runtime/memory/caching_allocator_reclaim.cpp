#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/caching_allocator_impl.hpp"

namespace vdev {
namespace {

std::string in_units(std::size_t bytes) {
  char text[48];
  if (bytes < 1024) {
    std::snprintf(text, sizeof text, "%zu bytes", bytes);
  } else if (bytes < kMiB) {
    std::snprintf(text, sizeof text, "%.2f KiB", static_cast<double>(bytes) / 1024.0);
  } else if (bytes < 1024 * kMiB) {
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB",
                  static_cast<double>(bytes) / (1024.0 * static_cast<double>(kMiB)));
  }
  return text;
}

}  // namespace

/// Moves the whole free segments of streams that are gone to `pool`. Those of private pools stay, because a
/// graph may outlive the stream that it was captured on.
void CachingAllocator::Impl::adopt_orphans(Pool& pool) {
  for (auto it = pools.begin(); it != pools.end();) {
    Pool& orphan = *it->second;
    if (&orphan == &pool || orphan.number >= kFirstPrivatePool || !orphan.queue->finished_for_good()) {
      ++it;
      continue;
    }
    for (const bool small : {false, true}) {
      auto& blocks = orphan.free_blocks(small);
      for (auto at = blocks.begin(); at != blocks.end();) {
        Block* block = *at;
        if (!block->whole_segment()) {
          ++at;
          continue;
        }
        at = blocks.erase(at);
        block->pool = &pool;
        pool.free_blocks(small).insert(block);
        --orphan.segments;
        ++pool.segments;
      }
    }
    it = orphan.segments == 0 ? pools.erase(it) : std::next(it);
  }
}

/// Releases the freed blocks whose points are all reached. Returns those points, for the caller to destroy
/// without the lock: with a point goes the error that it carries, whose destructor may take other locks.
std::vector<Event> CachingAllocator::Impl::collect_pending() {
  std::vector<Event> dealt_with;
  for (auto it = pending.begin(); it != pending.end();) {
    auto& waiting = it->second;
    // The points are in the order of the stream: if one is not reached, none behind it is.
    while (!waiting.empty() && waiting.front().point.reached()) {
      Block* block = waiting.front().block;
      dealt_with.push_back(std::move(waiting.front().point));
      waiting.pop_front();
      if (--block->points_to_come == 0) release_block(block);
    }
    it = waiting.empty() ? pending.erase(it) : std::next(it);
  }
  return dealt_with;
}

/// Waits for the points of all pending blocks. Does nothing inside a task, because a point might in turn wait
/// for the end of that task.
void CachingAllocator::Impl::wait_for_pending(std::unique_lock<std::mutex>& lock) {
  std::vector<Event> points;
  for (auto& [queue, waiting] : pending) {
    if (!waiting.empty()) points.push_back(waiting.back().point);
  }
  if (points.empty() || Queue::inside_task()) return;
  lock.unlock();
  for (const auto& point : points) point.wait();
  points.clear();
  lock.lock();
  points = collect_pending();
  lock.unlock();
  points.clear();
  lock.lock();
}

void CachingAllocator::Impl::return_segment(Block* block) {
  const std::size_t offset = block->offset, size = block->size;
  const bool small = block->segment->small;
  arena.discard(offset, size);  // comes first, because it may throw
  note(AllocatorEvent::Action::segment_free, *block, block->segment->site);
  if (block->segment->site) gone.push_back(std::exchange(block->segment->site, nullptr));
  block->pool->free_blocks(small).erase(block);
  ranges.give_back(offset, size);
  segments.erase(offset);
  --block->pool->segments;
  delete block;
  take(stats.reserved_bytes, small, size);
  take(stats.segment, small, 1);
}

/// Returns whether no task can use the free blocks of `pool`, now or later. Adds the queues whose tasks may
/// use them for the time being to `busy`. The order of the stream has freed the blocks of a scratch pool, so
/// no task uses them.
bool CachingAllocator::Impl::may_lose_segments(const Pool& pool, Queues& busy) const {
  if (pool.number == kScratchPool) return true;
  const auto before = busy.size();
  const auto check = [&](const auto& queue) {
    if (!queue->idle()) busy.push_back(queue);
  };
  if (pool.number >= kFirstPrivatePool) {
    const auto& users = private_pools.at(pool.number);
    if (users.users != 0) return false;
    std::ranges::for_each(users.queues, check);
  }
  check(pool.queue);
  return busy.size() == before;
}

/// Returns the whole free segments that no task can use to the system. The result has the queues whose tasks
/// may use other free segments.
std::vector<std::shared_ptr<Queue>> CachingAllocator::Impl::return_idle_segments() {
  std::vector<std::shared_ptr<Queue>> busy;
  for (auto& [key, pool] : pools) {
    std::vector<Block*> whole;
    for (auto* blocks : {&pool->small, &pool->large}) {
      std::copy_if(blocks->begin(), blocks->end(), std::back_inserter(whole),
                   [](const Block* block) { return block->whole_segment(); });
    }
    if (whole.empty() || !may_lose_segments(*pool, busy)) continue;
    for (Block* block : whole) return_segment(block);
  }
  forget_private_pools();
  return busy;
}

/// Forgets the private pools that have neither users nor memory.
void CachingAllocator::Impl::forget_private_pools() {
  std::erase_if(pools, [&](const auto& entry) {
    const Pool& pool = *entry.second;
    return pool.number >= kFirstPrivatePool && pool.segments == 0 && private_pools.at(pool.number).users == 0;
  });
  std::erase_if(private_pools, [&](const auto& entry) {
    return entry.second.users == 0 && std::ranges::none_of(pools, [&](const auto& other) {
             return other.second->number == entry.first;
           });
  });
}

/// Returns whole free segments, as a synchronising cudaFree does. The streams that use them are drained
/// first, without the lock, because their tasks may allocate and free.
void CachingAllocator::Impl::return_segments(std::unique_lock<std::mutex>& lock) {
  constexpr int kRounds = 3;  // other threads may go on enqueuing
  for (int round = 0; round < kRounds; ++round) {
    const auto busy = return_idle_segments();
    if (busy.empty() || Queue::inside_task()) return;  // as for wait_for_pending()
    lock.unlock();
    for (const auto& queue : busy) queue->help_until(queue->last());
    lock.lock();
  }
  return_idle_segments();
}

Block* CachingAllocator::Impl::retry(std::unique_lock<std::mutex>& lock, Pool& pool, const Request& request,
                                     Queues& users) {
  // Freeing other blocks does not help.
  if (request.size > limit || request.size > arena.capacity()) return nullptr;
  ++stats.num_alloc_retries;
  wait_for_pending(lock);
  if (Block* block = find_or_reserve(pool, request, users)) return block;
  return_segments(lock);
  return find_or_reserve(pool, request, users);
}

void CachingAllocator::Impl::throw_out_of_memory(const Request& request, const char* why) {
  ++stats.num_ooms;
  const auto allocated = static_cast<std::size_t>(stats.allocated_bytes.current);
  const auto reserved = static_cast<std::size_t>(stats.reserved_bytes.current);
  if (AllocatorHistory::recording()) {
    history.add({.action = AllocatorEvent::Action::out_of_memory,
                 .address = arena.capacity() - reserved,
                 .size = request.bytes,
                 .site = request.site},
                gone);
  }
  std::string text = base::text(device_title(), " out of memory. Tried to allocate ", in_units(request.bytes),
                                ". Card ", card, " has a total capacity of ", in_units(arena.capacity()),
                                " of which ", in_units(arena.capacity() - reserved), " is free. ");
  if (limit < arena.capacity()) text += base::text(in_units(limit), " allowed; ");
  text += base::text("Of the allocated memory ", in_units(allocated), " is allocated by PyTorch, and ",
                     in_units(reserved - std::min(allocated, reserved)),
                     " is reserved by PyTorch but unallocated.");
  text += why;
  throw OutOfMemory(text);
}

}  // namespace vdev
