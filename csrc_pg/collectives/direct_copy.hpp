// How bytes get from one rank's memory into another's.
//
// Two things are dear: to write a cache line that another core has in its cache, and to read a line from
// memory only to overwrite it. Stores past the caches (block_copy.hpp) avoid both, but leave what they
// wrote in nobody's cache. Hence: what goes to another rank's memory is streamed, unless this rank has just
// read those very lines; what a rank takes into its own memory is stored plainly, as long as it stays in the
// cache. Measured with 2 ranks that share a cache and 2 that do not: docs/algorithms.md.
#pragma once

#include <cstddef>
#include <span>

namespace vccl {

/// Buffers at least this long leave the caches before anybody reads them: they are streamed.
inline constexpr std::size_t kStreamedBytes = 4 * 1024 * 1024;

/// Parts at least this long are copied by all ranks together, where otherwise one would wait for another.
inline constexpr std::size_t kSharedBytes = 1024 * 1024;

/// Copies `bytes` bytes to all of `places`, which are mostly other ranks' memory. A place that is `from`
/// itself is left alone.
void push(const std::byte* from, std::span<std::byte* const> places, std::size_t bytes);

/// Copies `bytes` bytes into this rank's memory. `buffer_bytes`: of the whole buffer that they belong to.
void pull(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t buffer_bytes);

}  // namespace vccl
