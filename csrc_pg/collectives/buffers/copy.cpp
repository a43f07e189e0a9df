#include "csrc_pg/collectives/buffers/copy.hpp"

#include <algorithm>
#include <cstring>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/buffers/interleave.hpp"

namespace vccl {

namespace {

// What is read once for several destinations stays in the first-level cache between them.
constexpr std::size_t kBlockBytes = 16 * 1024;

// Shorter copies are in the cache, where interleaving gains nothing.
constexpr std::size_t kLeastInterleaved = 1024 * 1024;

}  // namespace

void push(const std::byte* from, std::span<std::byte* const> destinations, std::size_t bytes) {
  if (bytes < base::kLeastPastCaches) {
    for (std::byte* to : destinations)
      if (to != from) std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t ways = bytes < kLeastInterleaved ? 1 : 4;
  interleave(bytes, base::bytes_to_line(destinations[0]), ways, ways > 1 ? kInterleavedBytes : kBlockBytes,
             [&](std::size_t at, std::size_t length) {
               for (std::byte* to : destinations)
                 if (to != from) base::store_past_caches(to + at, from + at, length);
             });
  base::finish_stores();
}

void pull(std::byte* to, const std::byte* from, std::size_t bytes, bool leaves_caches) {
  if (bytes == 0 || to == from) return;
  if (leaves_caches)
    push(from, {&to, 1}, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace vccl
