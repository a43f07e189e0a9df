// The private pools that threads have chosen for what they allocate (torch.vdev.use_mem_pool).
#pragma once

#include "csrc_device/runtime/blocks/pool_number.hpp"

namespace vdev {

class CachingAllocator;

/// Makes the calling thread allocate from the pool, until the choice ends. The last choice counts.
void choose_pool(const CachingAllocator* allocator, PoolNumber pool);
/// Ends the calling thread's last choice of that pool. Returns false if there is none.
bool end_choice(const CachingAllocator* allocator, PoolNumber pool);
/// Returns the pool of `allocator` that the calling thread has chosen, or kProgramPool.
PoolNumber chosen_pool(const CachingAllocator* allocator) noexcept;

}  // namespace vdev
