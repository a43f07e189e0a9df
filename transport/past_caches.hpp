// Stores past the caches.
//
// A store to a cache line that another core has in its cache waits until that core has given the line up,
// however much the processor overlaps: measured between two cores that share no cache, 2.4 GB/s. And a store
// to a line that nobody has reads it from memory first, only to overwrite it. A store that bypasses the
// caches replaces the whole line and does neither: 10 to 20 GB/s. But it leaves what it wrote in nobody's
// cache.
#pragma once

#include <cstddef>

namespace vccl {

/// Whether there are such stores. The sanitizers would not see them.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
inline constexpr bool kStreamingStores = true;
#else
inline constexpr bool kStreamingStores = false;
#endif

inline constexpr std::size_t kLineBytes = 64;

/// Less is not worth a copy past the caches.
inline constexpr std::size_t kLeastPastCaches = 4096;

/// memcpy past the caches; plain where the processor cannot. Before a peer may look at it, finish_stores()
/// has to be called, and a flag set. Only whole cache lines of `to` bypass the caches: better begin at one.
void store_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

/// What this thread has stored past the caches is visible to whoever sees a flag that it sets from now on.
/// Costs as much as storing a kilobyte: not for every short piece.
void finish_stores() noexcept;

/// Both; a plain memcpy if it is short.
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

/// Bytes from there to the next beginning of a cache line, 0 at one.
std::size_t bytes_to_line(const void* at) noexcept;

}  // namespace vccl
