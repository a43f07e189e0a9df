#include "csrc_device/runtime/allocator/caching_allocator.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/allocator/caching_allocator_impl.hpp"
#include "csrc_device/runtime/allocator/chosen_pools.hpp"
#include "csrc_device/runtime/allocator/failing_allocations.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/memory_clock.hpp"
#include "csrc_device/runtime/memory/page_budget.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"

namespace vdev {

CachingAllocator::CachingAllocator(Arena& arena, int card, CardAccount account)
    : impl_(std::make_unique<Impl>(arena, card, account)) {}
CachingAllocator::~CachingAllocator() = default;

// --- blocks ---

/// Returns the pool that an allocation of the program comes from.
PoolNumber CachingAllocator::program_pool(const Queue& queue) {
  if (const auto capture = queue.capture()) return capture->pool_in(*this);
  return chosen_pool(this);
}

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
  const BlockRequest request{.bytes = bytes,
                             .size = size,
                             .small = size <= kSmallLimit,
                             .scratch = asker == Asker::kernel || number == kScratchPool,
                             .settings = settings,
                             .site = call_site(HistorySettings::Sites::blocks)};
  Locked locked(*impl_);
  if (!possible) impl_->throw_out_of_memory(request);
  if (!request.scratch && take_failing_allocation()) [[unlikely]]
    impl_->throw_out_of_memory(request, " A fault of the plan asked for this error (oom).");
  BlockCache& blocks = impl_->blocks;
  locked.reached = blocks.collect_pending();
  if (number >= kFirstPrivatePool && !blocks.pools.has_private(number))
    throw InvalidArgument("allocate: the private pool has no users");
  Pool& pool = blocks.pools.of(queue, number);
  const bool collects = settings.garbage_collection_threshold > 0;
  if (collects) ++blocks.searches;
  const auto attempt = [&] { return impl_->attempt(locked.lock, pool, request, collects, locked.users); };
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
  Block* block = impl_->blocks.live.at(p);
  if (block && block->scratch) impl_->blocks.adopt(block);
}

bool CachingAllocator::is_scratch(const std::byte* p) const {
  if (impl_->made.inherited()) return false;
  const std::lock_guard lock(impl_->mutex);
  const Block* block = impl_->blocks.live.at(p);
  return block && block->scratch;
}

void CachingAllocator::free(std::byte* p) {
  if (impl_->made.inherited())
    return;  // a forked child destroys its copies of tensors, but the memory is the parent's
  const CallSite site = call_site(HistorySettings::Sites::all);
  std::size_t spoiled = 0;  // bytes that may be
  std::uint64_t when = 0;
  {
    Locked locked(*impl_);
    Block* block = impl_->blocks.live.at(p);
    if (!block || block->freed_while_lent) throw InvalidArgument("free: not the start of a live block");
    // Asked with the lock held: a task that fails spoils the block before it looks whether the block is live.
    if (SpoiledMemory::any() && block->holds == 0) {
      spoiled = block->size;
      when = MemoryClock::next();
    }
    if (impl_->lent.end_lease(block)) {
      impl_->blocks.free(block, locked.users, site);
    } else {
      impl_->lent.put_in_limbo(block);
    }
  }
  // The next owner of the block must not get this one's failure.
  if (spoiled != 0) spoiled_memory().freed(p, spoiled, when);
}

void CachingAllocator::record_stream(std::byte* p, const std::shared_ptr<Stream>& stream) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  Block* block = impl_->blocks.live.at(p);
  if (!block) throw InvalidArgument("record_stream: not the start of a live block");
  const auto& queue = stream->queue();
  if (queue == block->pool->queue) return;
  auto& users = block->users;
  if (std::ranges::find(users, queue) == users.end()) users.push_back(queue);
}

std::size_t CachingAllocator::size_of(const std::byte* p) const {
  if (impl_->made.inherited()) return 0;
  std::lock_guard lock(impl_->mutex);
  const Block* block = impl_->blocks.live.at(p);
  return block ? block->size : 0;
}

PoolNumber CachingAllocator::pool_of(const std::byte* p) const {
  if (impl_->made.inherited()) return kProgramPool;
  std::lock_guard lock(impl_->mutex);
  const Block* block = impl_->blocks.live.at(p);
  return block ? block->pool->number : kProgramPool;
}

std::vector<LiveBlock> CachingAllocator::live_blocks(const std::byte* begin, const std::byte* end) const {
  if (impl_->made.inherited()) return {};
  std::lock_guard lock(impl_->mutex);
  return impl_->blocks.live.in(begin, end);
}

// --- private pools ---

void CachingAllocator::retain_pool(PoolNumber pool, PoolOptions options) {
  if (impl_->made.inherited()) throw BadFork();
  if (pool < kFirstPrivatePool) throw InvalidArgument("retain_pool: not the number of a private pool");
  std::lock_guard lock(impl_->mutex);
  impl_->blocks.pools.retain(pool, options);
}

void CachingAllocator::use_pool(PoolNumber pool, const std::shared_ptr<Queue>& queue) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  if (!impl_->blocks.pools.use(pool, queue)) throw InvalidArgument("use_pool: no such private pool");
}

void CachingAllocator::release_pool(PoolNumber pool) noexcept {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  impl_->blocks.pools.release(pool);
}

std::size_t CachingAllocator::pool_users(PoolNumber pool) const {
  if (impl_->made.inherited()) return 0;
  std::lock_guard lock(impl_->mutex);
  return impl_->blocks.pools.users(pool);
}

void CachingAllocator::begin_pool(PoolNumber pool) {
  retain_pool(pool);
  choose_pool(this, pool);
}

void CachingAllocator::end_pool(PoolNumber pool) {
  if (!end_choice(this, pool)) throw InvalidArgument("end_pool: this thread does not allocate from the pool");
  release_pool(pool);
}

// --- other processes ---

Lease CachingAllocator::lend(const std::byte* p, std::size_t bytes) {
  if (impl_->made.inherited()) throw BadFork();
  // A program that lends all the time frees its blocks in time, and does not look at all of them every time.
  constexpr std::size_t kAtATime = 4;
  Locked locked(*impl_);
  impl_->collect_lent(kAtATime, locked.users);
  Block* block = impl_->blocks.live.containing(p, bytes);
  if (!block) throw InvalidArgument("lend: the range lies in no live block");
  return impl_->lent.lend(block);
}

std::byte* CachingAllocator::hold(Lease lease, std::size_t offset, std::size_t bytes) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  Block* block = impl_->lent.find(lease);
  if (!block) return nullptr;
  if (offset < block->offset || offset - block->offset > block->size ||
      bytes > block->size - (offset - block->offset))
    return nullptr;
  process_ledger().take_message(lease);
  ++block->holds;
  return impl_->arena.base() + offset;
}

void CachingAllocator::let_go(Lease lease) {
  if (impl_->made.inherited()) return;
  Locked locked(*impl_);
  Block* block = impl_->lent.held(lease);
  if (SpoiledMemory::any() && block->holds == 1 && block->freed_while_lent) {
    // As in free(). The block is still held meanwhile.
    const std::byte* at = impl_->blocks.address(*block);
    const std::size_t size = block->size;
    const std::uint64_t when = MemoryClock::next();
    locked.lock.unlock();
    spoiled_memory().freed(at, size, when);
    locked.lock.lock();
  }
  if (--block->holds == 0 && block->freed_while_lent)
    impl_->collect_lent(impl_->lent.limbo_size(), locked.users);
}

void CachingAllocator::collect_lent() {
  if (impl_->made.inherited()) return;
  Locked locked(*impl_);
  impl_->collect_lent(impl_->lent.limbo_size(), locked.users);
}

// --- what the allocator has ---

void CachingAllocator::empty_cache(std::optional<PoolNumber> pool) {
  if (impl_->made.inherited()) throw BadFork();
  Locked locked(*impl_);
  impl_->blocks.stats.count_synchronisation();
  impl_->collect_lent(impl_->lent.limbo_size(), locked.users);
  locked.reached = impl_->blocks.collect_pending();
  if (pool) {
    impl_->return_segments(locked.lock, [&](const Block& block) { return block.pool->number == *pool; });
  } else {
    impl_->return_segments(locked.lock);
  }
}

std::size_t CachingAllocator::left() const {
  if (impl_->made.inherited()) return 0;
  std::lock_guard lock(impl_->mutex);
  return impl_->blocks.segments.left();
}

void CachingAllocator::set_limit(std::size_t bytes) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  impl_->blocks.segments.set_limit(bytes);
}

AllocatorStats CachingAllocator::stats() const {
  if (impl_->made.inherited()) return {};
  std::lock_guard lock(impl_->mutex);
  return impl_->blocks.stats.stats();
}

std::map<PoolNumber, AllocatorStats::Figures> CachingAllocator::reserved_by_private_pool() const {
  if (impl_->made.inherited()) return {};
  std::lock_guard lock(impl_->mutex);
  return impl_->blocks.stats.reserved_by_pool();
}

void CachingAllocator::reset_accumulated_stats() {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  impl_->blocks.stats.reset_accumulated();
}

void CachingAllocator::reset_peak_stats() {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  impl_->blocks.stats.reset_peaks();
}

AllocatorSnapshot CachingAllocator::snapshot(bool notes_event) {
  if (impl_->made.inherited()) throw BadFork();
  const CallSite site = call_site(HistorySettings::Sites::allocations);
  Locked locked(*impl_);
  BlockCache& blocks = impl_->blocks;
  locked.reached = blocks.collect_pending();
  AllocatorSnapshot result{.segments = describe_segments(impl_->arena.base(), blocks.all()),
                           .events = blocks.history.events()};
  if (notes_event && AllocatorHistory::recording()) {
    blocks.history.add({.action = AllocatorEvent::Action::snapshot,
                        .address = 0,
                        .size = blocks.segments.reserved(),
                        .site = site});
  }
  return result;
}

CallSite CachingAllocator::site_of(const std::byte* p) const {
  if (impl_->made.inherited()) return nullptr;
  std::lock_guard lock(impl_->mutex);
  const Block* block = impl_->blocks.live.at(p);
  return block ? block->site : nullptr;
}

void CachingAllocator::clear_history() {
  if (impl_->made.inherited()) return;
  Locked locked(*impl_);
  impl_->blocks.history.clear();
}

}  // namespace vdev
