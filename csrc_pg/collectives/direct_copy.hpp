// How bytes get from one rank's memory into another's.
//
// Two things are dear: to write a cache line that another core has in its cache, and to read a line from
// memory only to overwrite it. Stores past the caches (transport/past_caches.hpp) avoid both, but leave what
// they wrote in nobody's cache. Hence: what goes to another rank's memory is streamed, unless this rank has
// just read those very lines; what a rank takes into its own memory is stored plainly, as long as it stays in
// the cache. Measured with 2 ranks that share a cache and 2 that do not: docs/algorithms.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace vccl {

/// Whether buffers leave the caches before anybody reads them, where every rank has one of `bytes` bytes:
/// then they are streamed. Measured with two cores that share 32 MiB: with 2 ranks shorter ones take up to
/// three times as long past the caches, and with 4 ranks ones of 4 MiB are faster there.
inline bool leave_caches(std::size_t bytes, int ranks) {
  constexpr std::size_t kMiB = 1024 * 1024;
  const auto n = static_cast<std::size_t>(ranks);
  return bytes >= std::max(4 * kMiB, 64 * kMiB / (n * n));
}

/// Parts at least this long are copied by all ranks together, where otherwise one would wait for another.
inline constexpr std::size_t kSharedBytes = 1024 * 1024;

/// Copies `bytes` bytes to all of `places`, which are mostly other ranks' memory. A place that is `from`
/// itself is left alone.
void push(const std::byte* from, std::span<std::byte* const> places, std::size_t bytes);

/// Copies `bytes` bytes into this rank's memory. `leaves_caches`: the whole buffer that they belong to.
void pull(std::byte* to, const std::byte* from, std::size_t bytes, bool leaves_caches);

}  // namespace vccl
