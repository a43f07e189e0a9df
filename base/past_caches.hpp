// Stores past the caches.
//
// A store to a cache line that another core has in its cache waits until that core has given the line up,
// however much the processor overlaps stores. This was measured as 2.4 GB/s between two cores that share no
// cache. A store to a line that is in no cache first reads the line from memory, only to overwrite it. A
// store past the caches replaces the whole line and does neither, which was measured as 10 to 20 GB/s. The
// written line is then in no core's cache.
#pragma once

#include <cstddef>

namespace base {

/// Whether this build has such stores. The sanitizers would not see them, so sanitizer builds do without.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
inline constexpr bool kStreamingStores = true;
#else
inline constexpr bool kStreamingStores = false;
#endif

inline constexpr std::size_t kLineBytes = 64;

/// The smallest copy, in bytes, for which storing past the caches pays.
inline constexpr std::size_t kLeastPastCaches = 4096;

/// Copies like memcpy() past the caches, or with plain stores if the processor has no others. Call
/// finish_stores() and then set a flag before a peer may read the bytes. Only whole cache lines of `to`
/// bypass the caches, so `to` should begin at a cache line.
void store_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

/// Makes everything that this thread has stored past the caches visible to each thread that sees a flag set
/// after this call. Costs as much as storing a kilobyte, so do not call this for every short block.
void finish_stores() noexcept;

/// Calls store_past_caches() and finish_stores(). Uses a plain memcpy() for a short copy.
void copy_past_caches(void* to, const void* from, std::size_t bytes) noexcept;

/// Returns the number of bytes from `at` to the next beginning of a cache line, or 0 if `at` begins a cache
/// line.
std::size_t bytes_to_line(const void* at) noexcept;

}  // namespace base
