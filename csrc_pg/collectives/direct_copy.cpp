#include "csrc_pg/collectives/direct_copy.hpp"

#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/strands.hpp"
#include "transport/past_caches.hpp"

namespace vccl {

namespace {

// What is read once for several places stays in the first-level cache between them.
constexpr std::size_t kBlockBytes = 16 * 1024;

// Shorter copies are in the cache, where strands gain nothing.
constexpr std::size_t kLeastInStrands = 1024 * 1024;

}  // namespace

void push(const std::byte* from, std::span<std::byte* const> places, std::size_t bytes) {
  if (bytes < kLeastPastCaches) {
    for (std::byte* place : places)
      if (place != from) std::memcpy(place, from, bytes);
    return;
  }
  const std::size_t strands = bytes < kLeastInStrands ? 1 : 4;
  in_strands(bytes, bytes_to_line(places[0]), strands, strands > 1 ? kRunBytes : kBlockBytes,
             [&](std::size_t at, std::size_t length) {
               for (std::byte* place : places)
                 if (place != from) store_past_caches(place + at, from + at, length);
             });
  finish_stores();
}

void pull(std::byte* to, const std::byte* from, std::size_t bytes, bool leaves_caches) {
  if (bytes == 0 || to == from) return;
  if (leaves_caches)
    push(from, {&to, 1}, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace vccl
