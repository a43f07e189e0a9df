// The names of the allocator's pools, and the options of private ones.
#pragma once

#include <cstdint>

namespace vdev {

/// Says in whose order the blocks of a pool are allocated and freed. Every queue has pools of its own, one
/// for each number.
using PoolNumber = std::uint64_t;

/// The program allocates and frees the blocks, in the order of the host. Tasks that are queued may still use
/// a block that is free.
inline constexpr PoolNumber kProgramPool = 0;
/// Running tasks allocate and free the blocks, in the order of the stream. No task uses a block that is free.
/// The two orders differ, so a block never goes from one of these pools to the other while its queue has
/// tasks.
inline constexpr PoolNumber kScratchPool = 1;
/// The numbers from here on are private pools: see CachingAllocator::retain_pool().
inline constexpr PoolNumber kFirstPrivatePool = 2;

/// What is special about a private pool.
struct PoolOptions {
  /// Allocations outside of the pool take its free blocks when there is no other room.
  bool use_on_oom = false;
  /// The pool's free blocks are handed out whole.
  bool no_split = false;
};

}  // namespace vdev
