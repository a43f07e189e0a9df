// How bytes get from one rank's memory into another's.
//
// Two things are expensive: writing a cache line that another core has in its cache, and reading a line from
// memory only to overwrite it. Stores past the caches (base/past_caches.hpp) avoid both, but leave what
// they wrote in nobody's cache. So a rank stores past the caches what goes to another rank's memory, unless
// it has just read those very lines. It stores plainly what it takes into its own memory, as long as that
// stays in the cache. docs/inside/measurements.md has figures for 2 ranks that share a cache and 2 that do
// not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace vccl {

/// Returns whether buffers leave the caches before anybody reads them, where every rank has one of `bytes`
/// bytes. Then they are stored past the caches. This was measured with two cores that share 32 MiB: with 2
/// ranks, shorter buffers take up to three times as long past the caches, and with 4 ranks, buffers of 4 MiB
/// are faster there.
inline bool leave_caches(std::size_t bytes, int ranks) {
  constexpr std::size_t kMiB = 1024 * 1024;
  const auto n = static_cast<std::size_t>(ranks);
  return bytes >= std::max(4 * kMiB, 64 * kMiB / (n * n));
}

/// Chunks at least this long are copied by all ranks together, where otherwise one would wait for another.
inline constexpr std::size_t kDividedBytes = 1024 * 1024;

/// Copies `bytes` bytes to all of `destinations`, which are mostly other ranks' memory. Skips a destination
/// that is `from` itself.
void push(const std::byte* from, std::span<std::byte* const> destinations, std::size_t bytes);

/// Copies `bytes` bytes into this rank's memory. `leaves_caches` is leave_caches() of the whole buffer that
/// they belong to.
void pull(std::byte* to, const std::byte* from, std::size_t bytes, bool leaves_caches);

}  // namespace vccl
