#include "csrc_device/runtime/memory/caching_allocator.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/caching_allocator_impl.hpp"
#include "csrc_device/runtime/memory/first_use.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"

namespace vdev {
namespace {

constexpr std::size_t kUnit = 512;         // small blocks
constexpr std::size_t kLargeUnit = 4096;   // blocks above kSmallLimit
constexpr std::size_t kSmallLimit = kMiB;  // requests up to it share small segments, as on CUDA
constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kSharedSegment = 20 * kMiB;  // for large requests below kSharedLimit
constexpr std::size_t kSharedLimit = 10 * kMiB;
// A large block is not split if the rest would be at most this large, because no large request would fit in
// the rest.
constexpr std::size_t kLargeRemainder = kMiB;

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

std::vector<AllocatorStats::Figure*> every_figure(AllocatorStats& s) {
  std::vector<AllocatorStats::Figure*> all;
  for (auto* f : {&s.allocated_bytes, &s.requested_bytes, &s.reserved_bytes, &s.active_bytes,
                  &s.inactive_split_bytes, &s.allocation, &s.segment, &s.active, &s.inactive_split}) {
    all.insert(all.end(), {f, &f->small_pool, &f->large_pool});
  }
  return all;
}

}  // namespace

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
  }
  return *pool;
}

/// Takes the smallest free block that fits, and among equal ones the lowest.
Block* CachingAllocator::Impl::find_free(Pool& pool, std::size_t size, bool small) {
  auto& blocks = pool.free_blocks(small);
  Block key;
  key.size = size;
  const auto found = blocks.lower_bound(&key);
  if (found == blocks.end()) return nullptr;
  Block* block = *found;
  blocks.erase(found);
  return block;
}

Block* CachingAllocator::Impl::find_or_reserve(Pool& pool, const Request& request, Queues& users) {
  const auto find = [&] { return find_free(pool, request.size, request.small); };
  if (Block* block = find()) return block;
  if (!limbo.empty()) {
    collect_lent(limbo.size(), users);
    if (Block* block = find()) return block;
  }
  if (pools.size() > 1) {
    adopt_orphans(pool);
    if (Block* block = find()) return block;
  }
  return reserve_segment(pool, request);
}

bool CachingAllocator::Impl::reserve_is_allowed(std::size_t size) const {
  const auto reserved = static_cast<std::size_t>(stats.reserved_bytes.current);
  return reserved <= limit && size <= limit - reserved;
}

Block* CachingAllocator::Impl::reserve_segment(Pool& pool, const Request& request) {
  const bool small = request.small;
  const std::size_t exact = round_up(request.size, kSegmentUnit);
  std::vector<std::size_t> sizes;
  if (small) {
    sizes = {kSmallSegment};
  } else if (request.size < kSharedLimit) {
    sizes = {kSharedSegment, exact};  // if there is no room for the shared size, there may be for the exact
                                      // one
  } else {
    sizes = {exact};
  }
  for (const std::size_t wanted : sizes) {
    if (!reserve_is_allowed(wanted)) continue;
    const auto offset = ranges.take(wanted);
    if (!offset) continue;
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
    note(AllocatorEvent::Action::segment_alloc, *block, request.site);
    return block;
  }
  return nullptr;
}

/// Cuts the first `size` bytes off `block`. The rest becomes a free block, unless it is too small to be of
/// use.
void CachingAllocator::Impl::split(Block* block, std::size_t size, bool small) {
  const std::size_t rest = block->size - size;
  const bool was_part = !block->whole_segment();
  if (was_part) {
    take(stats.inactive_split, small, 1);
    take(stats.inactive_split_bytes, small, block->size);
  }
  if (rest < (small ? kUnit : kLargeRemainder + 1)) return;
  auto* remainder = new Block;
  remainder->offset = block->offset + size;
  remainder->size = rest;
  remainder->segment = block->segment;
  remainder->pool = block->pool;
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
  take(stats.active, small, 1);
  take(stats.active_bytes, small, block->size);
  block->in_use = false;
  merge(block, block->previous);
  merge(block, block->next);
  block->pool->free_blocks(block->segment->small).insert(block);
  if (!block->whole_segment()) {
    add(stats.inactive_split, small, 1);
    add(stats.inactive_split_bytes, small, block->size);
  }
}

/// Books the block and backs its first `size` bytes with pages. The pages are taken without the lock, because
/// that takes long and no other thread uses the block.
std::byte* CachingAllocator::Impl::hand_out(std::unique_lock<std::mutex>& lock, Block* block,
                                            const Request& request) {
  const std::size_t bytes = request.bytes, size = request.size;
  std::byte* at = arena.base() + block->offset;
  const bool small = block->segment->small;
  block->in_use = true;
  block->requested = bytes;
  live.emplace(at, block);
  add(stats.allocated_bytes, small, block->size);
  add(stats.requested_bytes, small, bytes);
  add(stats.active_bytes, small, block->size);
  add(stats.allocation, small, 1);
  add(stats.active, small, 1);
  block->site = request.site;
  note(AllocatorEvent::Action::alloc, *block, request.site);
  if (size <= block->backed) return at;
  const auto missing = block->segment->back(block->offset + block->backed, size - block->backed);
  const std::size_t backed_before = std::exchange(block->backed, size);
  if (missing.empty()) return at;
  lock.unlock();
  const bool ok = std::all_of(missing.begin(), missing.end(), [this](const auto& range) {
    return arena.populate(range.first, range.second);
  });
  if (ok) return at;
  lock.lock();
  block->backed = backed_before;
  block->segment->forget(missing);
  unbook(block);
  release_block(block);
  throw_out_of_memory(request, " The machine itself has no memory left to back the block.");
}

/// Removes the block from the live ones. The block stays active until release_block().
void CachingAllocator::Impl::unbook(Block* block) {
  const bool small = block->segment->small;
  live.erase(arena.base() + block->offset);
  take(stats.allocated_bytes, small, block->size);
  take(stats.requested_bytes, small, block->requested);
  take(stats.allocation, small, 1);
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

CachingAllocator::CachingAllocator(Arena& arena, int card) : impl_(std::make_unique<Impl>(arena, card)) {}
CachingAllocator::~CachingAllocator() = default;

// Sizes are rounded up to a multiple of 512 bytes (kUnit) up to 1 MiB (kSmallLimit), and to a multiple of 4
// KiB (kLargeUnit) above. Where no free block is large enough, reserve_segment() takes a segment from the
// card, in multiples of 2 MiB (kSegmentUnit).
std::byte* CachingAllocator::allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream,
                                      PoolNumber number) {
  return allocate(bytes, stream ? stream->queue() : nullptr, number);
}

std::byte* CachingAllocator::allocate(std::size_t bytes, const std::shared_ptr<Queue>& queue,
                                      PoolNumber number) {
  if (impl_->made.inherited()) throw BadFork();
  if (bytes == 0 || !queue) throw InvalidArgument("allocate: needs a size above 0 and a stream");
  if (number == kProgramPool) {
    if (const auto capture = queue->capture()) number = capture->pool_in(*this);
  }
  const bool small = bytes <= kSmallLimit;
  const bool possible = bytes <= impl_->arena.capacity();
  const Request request{bytes, possible ? round_up(bytes, small ? kUnit : kLargeUnit) : bytes, small,
                        call_site(HistorySettings::Sites::blocks)};
  Locked locked(*impl_);
  if (!possible) impl_->throw_out_of_memory(request);
  locked.reached = impl_->collect_pending();
  if (number >= kFirstPrivatePool && !impl_->private_pools.contains(number))
    throw InvalidArgument("allocate: the private pool has no users");
  Pool& pool = impl_->pool_of(queue, number);
  Block* block = impl_->find_or_reserve(pool, request, locked.users);
  if (!block) block = impl_->retry(locked.lock, pool, request, locked.users);
  if (!block) impl_->throw_out_of_memory(request);
  impl_->split(block, request.size, small);
  return impl_->hand_out(locked.lock, block, request);
}

void CachingAllocator::free(std::byte* p) {
  if (impl_->made.inherited())
    return;  // a forked child destroys its copies of tensors, but the memory is the parent's
  // The next owner of the block must not get this one's failure.
  if (SpoiledMemory::any()) spoiled_memory().renew(p, size_of(p));
  const CallSite site = call_site(HistorySettings::Sites::all);
  Locked locked(*impl_);
  const auto found = impl_->live.find(p);
  if (found == impl_->live.end() || found->second->freed_while_lent)
    throw InvalidArgument("free: not the start of a live block");
  Block* block = found->second;
  if (impl_->end_lease(block)) {
    impl_->free_block(block, locked.users, site);
  } else {
    block->freed_while_lent = true;
    impl_->limbo.push_back(block);
  }
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

void CachingAllocator::empty_cache() {
  if (impl_->made.inherited()) throw BadFork();
  Locked locked(*impl_);
  impl_->collect_lent(impl_->limbo.size(), locked.users);
  locked.reached = impl_->collect_pending();
  impl_->return_segments(locked.lock);
}

AllocatorStats CachingAllocator::stats() const {
  if (impl_->made.inherited()) return {};
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

void CachingAllocator::reset_accumulated_stats() {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  auto& s = impl_->stats;
  for (auto* f : every_figure(s)) f->allocated = f->freed = 0;
  s.num_alloc_retries = s.num_ooms = 0;
}

void CachingAllocator::reset_peak_stats() {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  auto& s = impl_->stats;
  for (auto* f : every_figure(s)) f->peak = f->current;
}

void CachingAllocator::set_limit(std::size_t bytes) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  impl_->limit = std::min(bytes, impl_->arena.capacity());
}

}  // namespace vdev
