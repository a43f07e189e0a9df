// Which CPU memory of this process comes from where peers may map it, and what a forked child has of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "csrc_device/runtime/host_memory.hpp"

namespace vdev {

/// From now on allocations of `min_bytes` and more come from shared memory. Makes the memory at first use.
/// Thread-safe; calling again changes the size. In a child forked since, it makes memory of the child's own.
/// Throws Error when the system refuses.
void share_host_memory(std::size_t min_bytes);
/// From now on none does. What was handed out stays as it is.
void stop_sharing_host_memory() noexcept;
bool is_sharing_host_memory() noexcept;

/// This process's; null before the first share_host_memory(), and again in a forked child.
HostMemory* host_memory() noexcept;
/// The memory that `p` lies in, this process's or one inherited from the parent. Null for any other address.
HostMemory* host_memory_of(const void* p) noexcept;

namespace detail {
extern std::atomic<std::size_t> least_shared;
}

/// Whether an allocation of `bytes` is to come from there. One load and a comparison.
inline bool is_shared_size(std::size_t bytes) noexcept {
  return bytes >= detail::least_shared.load(std::memory_order_relaxed);
}

}  // namespace vdev
