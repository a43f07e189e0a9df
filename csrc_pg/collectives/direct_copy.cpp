#include "csrc_pg/collectives/direct_copy.hpp"

#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/block_copy.hpp"

namespace vccl {

namespace {

// What is read once for several places stays in the first-level cache between them.
constexpr std::size_t kBlockBytes = 16 * 1024;

}  // namespace

void push(const std::byte* from, std::span<std::byte* const> places, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kBlockBytes) {
    const std::size_t block = std::min(kBlockBytes, bytes - at);
    for (std::byte* place : places)
      if (place != from) copy_over_shared(place + at, from + at, block);
  }
}

void pull(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t buffer_bytes) {
  if (bytes == 0 || to == from) return;
  if (buffer_bytes >= kStreamedBytes)
    copy_over_shared(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace vccl
