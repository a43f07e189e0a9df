// Copying into shared memory that a peer reads, and whose old contents it has read.
#pragma once

#include <cstddef>

namespace vccl {

/// memcpy into a slot: past the caches where plain stores are slow.
///
/// A store to a cache line that another core has read waits until that core has given the line up. Between
/// cores that share a cache this costs little, and the line stays where the reader finds it. Between cores
/// that share none it is the dearest thing there is: measured, 2 GB/s against 13 to 20 past the caches. Which
/// it is changes while a program runs (the scheduler moves ranks, a hypervisor its cores), so it is observed:
/// each thread times its copies.
///
/// The copy is visible to whoever sees a flag that this thread sets afterwards.
void copy_to_slot(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace vccl
