// Decides which CPU memory of this process comes from memory that peers may map, and what a forked child
// keeps of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "csrc_device/runtime/memory/host_memory.hpp"

namespace vdev {

/// Makes allocations of `min_bytes` and more come from shared memory from now on. The first call makes the
/// shared memory, and a further call changes `min_bytes`. In a forked child, the first call makes shared
/// memory of the child's own. Throws CardError when the system refuses. Thread-safe.
void share_host_memory(std::size_t min_bytes);
/// Makes allocations come from ordinary memory again. Blocks that were handed out stay as they are.
void stop_sharing_host_memory() noexcept;
bool is_sharing_host_memory() noexcept;

/// Returns this process's shared memory. Returns null before the first share_host_memory(), and in a forked
/// child until the child calls it.
HostMemory* host_memory() noexcept;
/// Returns the shared memory that holds `p`, whether this process made it or inherited it from its parent.
/// Returns null for any other address.
HostMemory* host_memory_of(const void* p) noexcept;

namespace detail {
extern std::atomic<std::size_t> least_shared;
}

/// Returns whether an allocation of `bytes` is to come from shared memory. Costs one load and a comparison.
inline bool is_shared_size(std::size_t bytes) noexcept {
  return bytes >= detail::least_shared.load(std::memory_order_relaxed);
}

}  // namespace vdev
