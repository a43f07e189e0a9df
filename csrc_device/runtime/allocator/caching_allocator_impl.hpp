// What the caching allocator does under its lock: it looks for blocks, and waits for streams when there seems
// to be no memory.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/blocks/block_cache.hpp"
#include "csrc_device/runtime/blocks/lent_blocks.hpp"

namespace vdev {

/// The caller of every member function holds the mutex. A function that takes the lock as an argument may
/// release it in between.
struct CachingAllocator::Impl {
  using Lock = std::unique_lock<std::mutex>;

  Impl(Arena& a, int c, CardAccount account) : arena(a), card(c), blocks(a, account) {}

  /// Returns a block for the request, with pages. Returns null, and the block is free again, if the machine
  /// does not have the memory. Throws OutOfMemory if the card has no room. `collects` says whether garbage is
  /// collected.
  std::byte* attempt(Lock& lock, Pool& pool, const BlockRequest& request, bool collects, Queues& users);
  void collect_lent(std::size_t most, Queues& users);
  void return_segments(Lock& lock, const BlockFilter& wanted = nullptr);
  [[noreturn]] void throw_out_of_memory(const BlockRequest& request, const std::string& why = {});

  Arena& arena;
  const int card;
  const base::ProcessMark made;

  // Guards everything below. A thread that holds the mutex waits for no stream, and destroys no object that
  // does not belong to the allocator: the destructor could take other locks.
  mutable std::mutex mutex;
  BlockCache blocks;
  LentBlocks lent;

 private:
  Block* find(Pool& pool, const BlockRequest& request, Queues& users);
  Block* retry(Lock& lock, Pool& pool, const BlockRequest& request, Queues& users);
  void wait_for_pending(Lock& lock);
  void return_oversize_segments(Lock& lock, const Pool& pool, const BlockRequest& request);
  void collect_garbage(Lock& lock, const AllocatorSettings& settings);
  std::byte* hand_out(Lock& lock, Block* block, const BlockRequest& request);
};

/// Holds the lock of the allocator. What is given up meanwhile is destroyed when the lock has been released.
struct CachingAllocator::Locked {
  explicit Locked(Impl& allocator) : impl(allocator), lock(allocator.mutex) {}
  ~Locked() {
    if (lock.owns_lock()) unused = impl.blocks.history.take_unused();
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  Impl& impl;
  std::vector<CallSite> unused;
  std::vector<Event> reached;
  Queues users;
  std::unique_lock<std::mutex> lock;
};

}  // namespace vdev
