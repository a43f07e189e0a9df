#include "csrc_device/runtime/allocator/caching_allocator.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/allocator/caching_allocator_impl.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/first_use.hpp"
#include "csrc_device/runtime/memory/memory_clock.hpp"
#include "csrc_device/runtime/memory/page_budget.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"

namespace vdev {
std::vector<AllocatorStats::Figure*> CachingAllocator::Impl::every_figure() {
  std::vector<AllocatorStats::Figure*> all{&stats.oversize_allocations, &stats.oversize_segments};
  const auto add_all = [&](AllocatorStats::Figures& f) {
    all.insert(all.end(), {&f, &f.small_pool, &f.large_pool});
  };
  for (auto* f : {&stats.allocated_bytes, &stats.requested_bytes, &stats.scratch_bytes, &stats.reserved_bytes,
                  &stats.active_bytes, &stats.inactive_split_bytes, &stats.allocation, &stats.segment,
                  &stats.active, &stats.inactive_split})
    add_all(*f);
  for (auto& [pool, figures] : reserved_by_pool) add_all(figures);
  return all;
}

CachingAllocator::Impl::~Impl() {
  std::set<Block*> firsts;
  for (auto& [at, block] : live) firsts.insert(block);
  for (auto& [queue, waiting] : pending) {
    for (auto& entry : waiting) firsts.insert(entry.block);
  }
  for (auto& [key, pool] : pools) {
    firsts.insert(pool->small.begin(), pool->small.end());
    firsts.insert(pool->large.begin(), pool->large.end());
  }
  for (Block* block : firsts) delete block;
}

// --- finding a block ---

Pool& CachingAllocator::Impl::pool_of(const std::shared_ptr<Queue>& queue, PoolNumber number) {
  auto& pool = pools[{queue.get(), number}];
  if (!pool) {
    pool = std::make_unique<Pool>();
    pool->queue = queue;
    pool->number = number;
    pool->splits = number < kFirstPrivatePool || !private_pools.at(number).options.no_split;
  }
  return *pool;
}

/// Takes the smallest free block that fits, and among equal ones the lowest. As on CUDA, blocks that are too
/// large to be split go to requests that are nearly as large.
Block* CachingAllocator::Impl::find_free(Pool& pool, const Request& request) {
  auto& blocks = pool.free_blocks(request.small);
  Block key;
  key.size = request.size;
  const auto found = blocks.lower_bound(&key);
  if (found == blocks.end()) return nullptr;
  Block* block = *found;
  const auto& settings = request.settings;
  const bool oversize = request.size >= settings.max_split_size;
  if (!oversize && block->size >= settings.max_split_size) return nullptr;
  if (oversize && block->size - request.size >= settings.max_non_split_rounding) return nullptr;
  blocks.erase(found);
  return block;
}

Block* CachingAllocator::Impl::find(Pool& pool, const Request& request, Queues& users) {
  if (Block* block = find_free(pool, request)) return block;
  if (!limbo.empty()) {
    collect_lent(limbo.size(), users);
    if (Block* block = find_free(pool, request)) return block;
  }
  if (pools.size() > 1) {
    adopt_orphans(pool);
    return find_free(pool, request);
  }
  return nullptr;
}

bool CachingAllocator::Impl::reserve_is_allowed(std::size_t size) const {
  const auto reserved = static_cast<std::size_t>(stats.reserved_bytes.current);
  return reserved <= limit && size <= limit - reserved;
}

Block* CachingAllocator::Impl::reserve_segment(Pool& pool, const Request& request) {
  const bool small = request.small;
  const std::size_t usual = segment_size(request.size, request.settings);
  // If there is no room for the usual size, there may be for the exact one.
  const std::size_t exact = small ? usual : (request.size + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
  for (const std::size_t wanted : {usual, exact}) {
    if (!reserve_is_allowed(wanted)) continue;
    const auto offset = ranges.take(wanted);
    if (!offset) continue;
    if (!account.reserve(wanted)) {
      ranges.give_back(*offset, wanted);
      continue;
    }
    note_first_use();
    auto segment = std::make_unique<Segment>(*offset, wanted, small);
    segment->site = request.site;
    auto* block = new Block;
    block->offset = *offset;
    block->size = wanted;
    block->segment = segment.get();
    block->pool = &pool;
    segments.emplace(*offset, std::move(segment));
    ++pool.segments;
    add(stats.reserved_bytes, small, wanted);
    add(stats.segment, small, 1);
    if (pool.number >= kFirstPrivatePool) add(reserved_by_pool[pool.number], small, wanted);
    block->segment->oversize = wanted >= request.settings.max_split_size;
    if (block->segment->oversize) add(stats.oversize_segments, 1);
    note(AllocatorEvent::Action::segment_alloc, *block, request.site);
    return block;
  }
  return nullptr;
}

/// Cuts what the request needs off the front of `block`. The rest becomes a free block, unless it is too
/// small to be of use: no large request would fit in 1 MiB.
void CachingAllocator::Impl::split(Block* block, const Request& request) {
  const bool small = request.small;
  const std::size_t size = request.size, rest = block->size - size;
  if (!block->whole_segment()) {
    take(stats.inactive_split, small, 1);
    take(stats.inactive_split_bytes, small, block->size);
  }
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
  add(stats.inactive_split, small, 1);
  add(stats.inactive_split_bytes, small, rest);
}

// --- giving a block back ---

/// Makes `neighbour`, if it is free, a part of `block`.
void CachingAllocator::Impl::merge(Block* block, Block* neighbour) {
  if (!neighbour || neighbour->in_use) return;
  neighbour->pool->free_blocks(neighbour->segment->small).erase(neighbour);
  take(stats.inactive_split, neighbour->segment->small, 1);
  take(stats.inactive_split_bytes, neighbour->segment->small, neighbour->size);
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

/// Makes the block free. Call this when no stream but the block's own uses it any more.
void CachingAllocator::Impl::release_block(Block* block) {
  const bool small = block->segment->small;
  note(AllocatorEvent::Action::free_completed, *block, block->site);
  if (block->site) gone.push_back(std::exchange(block->site, nullptr));
  if (!block->scratch) {
    take(stats.active, small, 1);
    take(stats.active_bytes, small, block->size);
  }
  block->in_use = block->scratch = false;
  block->freed_at = searches;
  merge(block, block->previous);
  merge(block, block->next);
  block->pool->free_blocks(block->segment->small).insert(block);
  if (!block->whole_segment()) {
    add(stats.inactive_split, small, 1);
    add(stats.inactive_split_bytes, small, block->size);
  }
}

/// Books the block and backs its first `size` bytes with pages. The pages are taken without the lock, because
/// that takes long and no other thread uses the block. Returns null, and the block is free again, if the
/// machine does not have the memory.
std::byte* CachingAllocator::Impl::hand_out(std::unique_lock<std::mutex>& lock, Block* block,
                                            const Request& request) {
  const std::size_t bytes = request.bytes, size = request.size;
  std::byte* at = arena.base() + block->offset;
  block->in_use = true;
  block->born = MemoryClock::next();
  block->requested = bytes;
  block->scratch = request.scratch;
  block->oversize = block->size >= request.settings.max_split_size;
  live.emplace(at, block);
  book(block);
  block->site = request.site;
  note(AllocatorEvent::Action::alloc, *block, request.site);
  if (size <= block->backed) return at;
  const auto missing = block->segment->back(block->offset + block->backed, size - block->backed);
  const std::size_t backed_before = std::exchange(block->backed, size);
  if (missing.empty()) return at;
  lock.unlock();
  const bool ok = std::all_of(missing.begin(), missing.end(), [this](const auto& range) {
    return back_with_pages(arena, range.first, range.second);
  });
  if (ok) return at;
  lock.lock();
  block->backed = backed_before;
  block->segment->forget(missing);
  unbook(block);
  release_block(block);
  return nullptr;
}

/// Adds the block to the figures of those that are handed out.
void CachingAllocator::Impl::book(Block* block) {
  const bool small = block->segment->small;
  if (block->scratch) {
    add(stats.scratch_bytes, small, block->size);
    return;
  }
  add(stats.allocated_bytes, small, block->size);
  add(stats.requested_bytes, small, block->requested);
  add(stats.active_bytes, small, block->size);
  add(stats.allocation, small, 1);
  add(stats.active, small, 1);
  if (block->oversize) add(stats.oversize_allocations, 1);
}

/// Removes the block from the live ones. The program's blocks stay active until release_block().
void CachingAllocator::Impl::unbook(Block* block) {
  const bool small = block->segment->small;
  live.erase(arena.base() + block->offset);
  if (block->scratch) {
    take(stats.scratch_bytes, small, block->size);
    return;
  }
  take(stats.allocated_bytes, small, block->size);
  take(stats.requested_bytes, small, block->requested);
  take(stats.allocation, small, 1);
  if (block->oversize) take(stats.oversize_allocations, 1);
}

/// Frees the block, which becomes free for use again when the streams that use it have passed this point.
void CachingAllocator::Impl::free_block(Block* block, Queues& users, const CallSite& site) {
  unbook(block);
  note(AllocatorEvent::Action::free_requested, *block, site ? site : block->site);
  for (const auto& queue : block->users) {
    // Blocks of a captured queue are used in the order of the host when the graph is replayed (graph.cpp).
    Event point(queue->record_uncaptured());
    if (point.reached()) continue;
    ++block->points_to_come;
    pending[queue.get()].push_back({block, std::move(point)});
  }
  std::move(block->users.begin(), block->users.end(), std::back_inserter(users));
  block->users.clear();
  if (block->points_to_come == 0) release_block(block);
}

// --- the interface ---

CachingAllocator::CachingAllocator(Arena& arena, int card, CardAccount account)
    : impl_(std::make_unique<Impl>(arena, card, account)) {}
CachingAllocator::~CachingAllocator() = default;

std::byte* CachingAllocator::allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream,
                                      PoolNumber number) {
  return allocate(bytes, stream ? stream->queue() : nullptr, number);
}

std::byte* CachingAllocator::allocate(std::size_t bytes, const std::shared_ptr<Queue>& queue,
                                      PoolNumber number, Asker asker) {
  if (impl_->made.inherited()) throw BadFork();
  if (bytes == 0 || !queue) throw InvalidArgument("allocate: needs a size above 0 and a stream");
  if (number == kProgramPool) number = program_pool(*queue);
  const auto& settings = allocator_settings();
  const bool possible = bytes <= impl_->arena.capacity();
  const std::size_t size = possible ? block_size(bytes, settings) : bytes;
  const Request request{.bytes = bytes,
                        .size = size,
                        .small = size <= kSmallLimit,
                        .scratch = asker == Asker::kernel || number == kScratchPool,
                        .settings = settings,
                        .site = call_site(HistorySettings::Sites::blocks)};
  Locked locked(*impl_);
  if (!possible) impl_->throw_out_of_memory(request);
  locked.reached = impl_->collect_pending();
  if (number >= kFirstPrivatePool && !impl_->private_pools.contains(number))
    throw InvalidArgument("allocate: the private pool has no users");
  Pool& pool = impl_->pool_of(queue, number);
  const bool collects = settings.garbage_collection_threshold > 0;
  if (collects) ++impl_->searches;
  const auto attempt = [&]() -> std::byte* {
    Block* block = impl_->find(pool, request, locked.users);
    if (!block && collects) impl_->collect_garbage(locked.lock, settings);
    if (!block) block = impl_->reserve_segment(pool, request);
    if (!block) block = impl_->retry(locked.lock, pool, request, locked.users);
    if (!block) block = impl_->find_in_other_pools(pool, request);
    if (!block) impl_->throw_out_of_memory(request);
    impl_->split(block, request);
    return impl_->hand_out(locked.lock, block, request);
  };
  if (std::byte* at = attempt()) [[likely]] {
    return at;
  }
  impl_->return_segments(locked.lock);  // what the other blocks of the cache have of the machine's memory
  if (std::byte* at = attempt()) return at;
  impl_->return_segments(locked.lock);  // the pages that the attempt has got
  impl_->throw_out_of_memory(request, base::text(" ", page_budget().explanation()));
}

void CachingAllocator::adopt(std::byte* p) {
  if (impl_->made.inherited()) return;
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->live.find(p);
  if (found == impl_->live.end() || !found->second->scratch) return;
  Block* block = found->second;
  take(impl_->stats.scratch_bytes, block->segment->small, block->size);
  block->scratch = false;
  impl_->book(block);
}

bool CachingAllocator::is_scratch(const std::byte* p) const {
  if (impl_->made.inherited()) return false;
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->live.find(p);
  return found != impl_->live.end() && found->second->scratch;
}

void CachingAllocator::free(std::byte* p) {
  if (impl_->made.inherited())
    return;  // a forked child destroys its copies of tensors, but the memory is the parent's
  const CallSite site = call_site(HistorySettings::Sites::all);
  std::size_t spoiled = 0;  // bytes that may be
  std::uint64_t when = 0;
  {
    Locked locked(*impl_);
    const auto found = impl_->live.find(p);
    if (found == impl_->live.end() || found->second->freed_while_lent)
      throw InvalidArgument("free: not the start of a live block");
    Block* block = found->second;
    // Asked with the lock held: a task that fails spoils the block before it looks whether the block is live.
    if (SpoiledMemory::any() && block->holds == 0) {
      spoiled = block->size;
      when = MemoryClock::next();
    }
    if (impl_->end_lease(block)) {
      impl_->free_block(block, locked.users, site);
    } else {
      block->freed_while_lent = true;
      impl_->limbo.push_back(block);
    }
  }
  // The next owner of the block must not get this one's failure.
  if (spoiled != 0) spoiled_memory().freed(p, spoiled, when);
}

void CachingAllocator::record_stream(std::byte* p, const std::shared_ptr<Stream>& stream) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->live.find(p);
  if (found == impl_->live.end()) throw InvalidArgument("record_stream: not the start of a live block");
  Block* block = found->second;
  const auto& queue = stream->queue();
  if (queue == block->pool->queue) return;
  auto& users = block->users;
  if (std::find(users.begin(), users.end(), queue) == users.end()) users.push_back(queue);
}

std::size_t CachingAllocator::size_of(const std::byte* p) const {
  if (impl_->made.inherited()) return 0;
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->live.find(p);
  return found == impl_->live.end() ? 0 : found->second->size;
}

void CachingAllocator::empty_cache(std::optional<PoolNumber> pool) {
  if (impl_->made.inherited()) throw BadFork();
  Locked locked(*impl_);
  ++impl_->stats.num_sync_all_streams;
  impl_->collect_lent(impl_->limbo.size(), locked.users);
  locked.reached = impl_->collect_pending();
  if (pool) {
    impl_->return_segments(locked.lock, [&](const Block& block) { return block.pool->number == *pool; });
  } else {
    impl_->return_segments(locked.lock);
  }
}

std::size_t CachingAllocator::left() const {
  if (impl_->made.inherited()) return 0;
  std::lock_guard lock(impl_->mutex);
  return impl_->left();
}

AllocatorStats CachingAllocator::stats() const {
  if (impl_->made.inherited()) return {};
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

std::map<PoolNumber, AllocatorStats::Figures> CachingAllocator::reserved_by_private_pool() const {
  if (impl_->made.inherited()) return {};
  std::lock_guard lock(impl_->mutex);
  return impl_->reserved_by_pool;
}

void CachingAllocator::reset_accumulated_stats() {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  auto& s = impl_->stats;
  for (auto* f : impl_->every_figure()) f->allocated = f->freed = 0;
  s.num_alloc_retries = s.num_ooms = s.num_sync_all_streams = 0;
  std::erase_if(impl_->reserved_by_pool, [](const auto& entry) { return entry.second.current == 0; });
}

void CachingAllocator::reset_peak_stats() {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  for (auto* f : impl_->every_figure()) f->peak = f->current;
}

void CachingAllocator::set_limit(std::size_t bytes) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  impl_->limit = std::min(bytes, impl_->arena.capacity());
}

}  // namespace vdev
