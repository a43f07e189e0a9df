// Blocks that other processes use, too. A lent block that the program frees goes to limbo, and is freed when
// the ledger says that nobody needs it any more.
#include <algorithm>

#include "csrc_device/runtime/allocator/caching_allocator_impl.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/memory_clock.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"

namespace vdev {

Block* CachingAllocator::Impl::find_live(const std::byte* p, std::size_t bytes) const {
  const auto contains = [&](const auto& entry) {
    const auto before = static_cast<std::size_t>(p - entry.first);
    return p >= entry.first && before <= entry.second->size && bytes <= entry.second->size - before;
  };
  // A storage almost always begins where its block does.
  if (const auto found = live.find(p); found != live.end()) return contains(*found) ? found->second : nullptr;
  const auto found = std::find_if(live.begin(), live.end(), contains);
  return found == live.end() ? nullptr : found->second;
}

std::vector<LiveBlock> CachingAllocator::live_blocks(const std::byte* begin, const std::byte* end) const {
  std::vector<LiveBlock> found;
  if (impl_->made.inherited()) return found;
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [at, block] : impl_->live) {
      if (at >= end || at + block->size <= begin || (block->freed_while_lent && block->holds == 0)) continue;
      found.push_back({std::max(at, begin), std::min(at + block->size, end), block->born});
    }
  }
  std::ranges::sort(found, {}, &LiveBlock::begin);
  return found;
}

/// Returns whether nobody needs the block but its owner. The block is not lent afterwards.
bool CachingAllocator::Impl::end_lease(Block* block) {
  if (block->lease.generation == 0) return true;
  if (block->holds != 0 || !process_ledger().try_close(block->lease)) return false;
  lent.erase(block->lease.slot);
  block->lease = {};
  return true;
}

/// Looks at the `most` blocks that have been in limbo for longest since they were looked at, and frees those
/// that nobody needs.
void CachingAllocator::Impl::collect_lent(std::size_t most, Queues& users) {
  for (most = std::min(most, limbo.size()); most != 0; --most) {
    Block* block = limbo.front();
    limbo.pop_front();
    if (end_lease(block)) {
      block->freed_while_lent = false;
      free_block(block, users);
    } else {
      limbo.push_back(block);
    }
  }
}

Lease CachingAllocator::lend(const std::byte* p, std::size_t bytes) {
  if (impl_->made.inherited()) throw BadFork();
  // A program that lends all the time frees its blocks in time, and does not look at all of them every time.
  constexpr std::size_t kAtATime = 4;
  Locked locked(*impl_);
  impl_->collect_lent(kAtATime, locked.users);
  Block* block = impl_->find_live(p, bytes);
  if (!block) throw InvalidArgument("lend: the range lies in no live block");
  auto& ledger = process_ledger();
  if (block->lease.generation == 0) {
    block->lease = ledger.open();
    impl_->lent.emplace(block->lease.slot, block);
  }
  ledger.add_message(block->lease);
  return block->lease;
}

std::byte* CachingAllocator::hold(Lease lease, std::size_t offset, std::size_t bytes) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->lent.find(lease.slot);
  if (found == impl_->lent.end() || found->second->lease != lease) return nullptr;
  Block* block = found->second;
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
  Block* block = impl_->lent.at(lease.slot);
  if (SpoiledMemory::any() && block->holds == 1 && block->freed_while_lent) {
    // As in free(). The block is still held meanwhile.
    const std::byte* at = impl_->arena.base() + block->offset;
    const std::size_t size = block->size;
    const std::uint64_t when = MemoryClock::next();
    locked.lock.unlock();
    spoiled_memory().freed(at, size, when);
    locked.lock.lock();
  }
  if (--block->holds == 0 && block->freed_while_lent) impl_->collect_lent(impl_->limbo.size(), locked.users);
}

void CachingAllocator::collect_lent() {
  if (impl_->made.inherited()) return;
  Locked locked(*impl_);
  impl_->collect_lent(impl_->limbo.size(), locked.users);
}

}  // namespace vdev
