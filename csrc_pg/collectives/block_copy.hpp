// Stores past the caches.
#pragma once

#include <cstddef>

namespace vccl {

/// Less is not worth a copy past the caches.
inline constexpr std::size_t kLeastPastCaches = 4096;

/// memcpy that leaves what it writes in nobody's cache: where that pays, see direct_copy.hpp. Before a peer
/// may look at it, finish_stores() has to be called, and a flag set. Only whole cache lines of `to` bypass
/// the caches: better begin at one.
void store_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

/// What this thread has stored past the caches is visible to whoever sees a flag that it sets from now on.
/// Costs as much as storing a kilobyte: not for every block.
void finish_stores() noexcept;

/// Bytes from there to the next beginning of a cache line, 0 at one.
std::size_t bytes_to_line(const void* at) noexcept;

/// memcpy for memory whose old contents a peer has just read: where that pays, past the caches, and finished.
///
/// A store to a cache line that another core has read waits until that core has given the line up, however
/// much the processor overlaps: measured between two cores that share no cache, 2.4 GB/s. A store that
/// bypasses the caches replaces the whole line and waits for nobody: 10 GB/s.
void copy_over_shared(void* to, const void* from, std::size_t bytes) noexcept;

}  // namespace vccl
