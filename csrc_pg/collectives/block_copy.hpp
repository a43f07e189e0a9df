// Copying a block that came from a neighbour.
#pragma once

#include <cstddef>

namespace vccl {

/// memcpy for memory whose old contents a peer has just read: where that pays, past the caches.
///
/// A store to a cache line that another core has read waits until that core has given the line up, however
/// much the processor overlaps: measured between two cores that share no cache, 2.4 GB/s. A store that
/// bypasses the caches replaces the whole line and waits for nobody: 10 GB/s. The copy is visible to whoever
/// sees a flag that this thread sets afterwards.
void copy_over_shared(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace vccl
