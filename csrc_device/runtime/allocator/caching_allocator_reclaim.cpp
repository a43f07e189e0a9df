#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/allocator/caching_allocator_impl.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/page_budget.hpp"

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

/// Returns sentences about the processes other than this one.
std::string other_users(const std::vector<CardUser>& users) {
  constexpr int kMost = 8;
  std::string text;
  int others = 0;
  for (const CardUser& user : users) {
    if (user.self || ++others > kMost) continue;
    text += base::text("Process ", user.pid, user.foreign ? " of another pid namespace (" : " (", user.name,
                       ") has ", in_units(user.bytes), " memory in use. ");
  }
  if (others > kMost) text += base::text(others - kMost, " more processes use the card. ");
  if (others != 0)
    text += base::text("torch.", device_name(),
                       ".list_gpu_processes() lists them, and "
                       "processes with different VDEV_HOSTID have cards of their own. ");
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
  if (block->segment->oversize) take(stats.oversize_segments, 1);
  if (block->pool->number >= kFirstPrivatePool) take(reserved_by_pool[block->pool->number], small, size);
  ranges.give_back(offset, size);
  account.give_back(size);
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

/// Returns the whole free segments that no task can use to the system, of those that are wanted. The result
/// has the queues whose tasks may use the others.
std::vector<std::shared_ptr<Queue>> CachingAllocator::Impl::return_idle_segments(const BlockFilter& wanted) {
  std::vector<std::shared_ptr<Queue>> busy;
  for (auto& [key, pool] : pools) {
    std::vector<Block*> whole;
    for (auto* blocks : {&pool->small, &pool->large}) {
      std::copy_if(blocks->begin(), blocks->end(), std::back_inserter(whole),
                   [&](const Block* block) { return block->whole_segment() && (!wanted || wanted(*block)); });
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

/// Returns whole free segments, as a synchronising cudaFree does: those that are wanted, or all. The streams
/// that use them are drained first, without the lock, because their tasks may allocate and free.
void CachingAllocator::Impl::return_segments(std::unique_lock<std::mutex>& lock, const BlockFilter& wanted) {
  constexpr int kRounds = 3;  // other threads may go on enqueuing
  for (int round = 0; round < kRounds; ++round) {
    const auto busy = return_idle_segments(wanted);
    if (busy.empty() || Queue::inside_task()) return;  // as for wait_for_pending()
    lock.unlock();
    for (const auto& queue : busy) queue->help_until(queue->last());
    lock.lock();
  }
  return_idle_segments(wanted);
}

/// Returns free blocks of the pool that are too large to be split: one that is as large as the request, or
/// else the largest ones, as many as are as large together.
void CachingAllocator::Impl::return_oversize_segments(std::unique_lock<std::mutex>& lock, const Pool& pool,
                                                      const Request& request) {
  Block key;
  key.size = std::max(request.size, request.settings.max_split_size);
  std::set<const Block*> chosen;
  if (const auto found = pool.large.lower_bound(&key); found != pool.large.end()) {
    chosen.insert(*found);
  } else {
    std::size_t together = 0;
    for (auto it = pool.large.rbegin(); it != pool.large.rend() && together < key.size; ++it) {
      if ((*it)->size < request.settings.max_split_size) return;
      chosen.insert(*it);
      together += (*it)->size;
    }
    if (together < key.size) return;
  }
  return_segments(lock, [&](const Block& block) { return chosen.contains(&block); });
}

/// Returns large segments of the program that have been free for at least as long as the average, until no
/// more than the threshold is reserved. An age is the number of requests since the block became free.
void CachingAllocator::Impl::collect_garbage(std::unique_lock<std::mutex>& lock,
                                             const AllocatorSettings& settings) {
  const auto threshold =
      static_cast<std::int64_t>(settings.garbage_collection_threshold * static_cast<double>(limit));
  while (stats.reserved_bytes.current > threshold) {
    const auto now = searches;
    std::uint64_t ages = 0, count = 0;
    for (const auto& [key, pool] : pools) {
      if (pool->number != kProgramPool) continue;
      for (const Block* block : pool->large) {
        if (!block->whole_segment()) continue;
        ages += now - block->freed_at;
        ++count;
      }
    }
    const auto freed_before = stats.reserved_bytes.freed;
    return_segments(lock, [&](const Block& block) {
      return block.pool->number == kProgramPool && !block.segment->small && block.freed_at <= now &&
             (now - block.freed_at) * count >= ages;
    });
    if (stats.reserved_bytes.freed == freed_before) return;
  }
}

Block* CachingAllocator::Impl::retry(std::unique_lock<std::mutex>& lock, Pool& pool, const Request& request,
                                     Queues& users) {
  // Freeing other blocks does not help.
  if (request.size > limit || request.size > arena.capacity()) return nullptr;
  ++stats.num_alloc_retries;
  ++stats.num_sync_all_streams;
  const auto look = [&] {
    Block* block = find(pool, request, users);
    return block ? block : reserve_segment(pool, request);
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

std::size_t CachingAllocator::Impl::left() const {
  const std::size_t own = arena.capacity() - static_cast<std::size_t>(stats.reserved_bytes.current);
  return std::min({own, account.left(), page_budget().room()});
}

void CachingAllocator::Impl::throw_out_of_memory(const Request& request, const std::string& why) {
  ++stats.num_ooms;
  const auto allocated = static_cast<std::size_t>(stats.allocated_bytes.current);
  const auto scratch = static_cast<std::size_t>(stats.scratch_bytes.current);
  const auto reserved = static_cast<std::size_t>(stats.reserved_bytes.current);
  if (AllocatorHistory::recording()) {
    history.add({.action = AllocatorEvent::Action::out_of_memory,
                 .address = left(),
                 .size = request.bytes,
                 .site = request.site},
                gone);
  }
  std::string text = base::text(device_title(), " out of memory. Tried to allocate ", in_units(request.bytes),
                                ". Card ", card, " has a total capacity of ", in_units(arena.capacity()),
                                " of which ", in_units(left()), " is free. ", other_users(account.users()));
  if (limit < arena.capacity()) text += base::text(in_units(limit), " allowed; ");
  text += base::text("Of the allocated memory ", in_units(allocated), " is allocated by PyTorch, ",
                     scratch != 0 ? base::text(in_units(scratch), " by kernels that are running, ") : "",
                     "and ", in_units(reserved - std::min(allocated + scratch, reserved)),
                     " is reserved by PyTorch but unallocated.");
  text += why;
  throw OutOfMemory(text);
}

}  // namespace vdev
