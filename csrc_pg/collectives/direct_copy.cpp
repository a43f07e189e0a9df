#include "csrc_pg/collectives/direct_copy.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "csrc_pg/collectives/block_copy.hpp"

namespace vccl {

void push(const std::byte* from, std::span<std::byte* const> places, std::size_t bytes) {
  static const int mode = std::getenv("X_MODE") ? std::atoi(std::getenv("X_MODE")) : 0;
  static const std::size_t block = std::getenv("X_BLOCK") ? std::atoi(std::getenv("X_BLOCK")) : 16384;
  for (std::size_t at = 0; at < bytes; at += block) {
    const std::size_t now = std::min(block, bytes - at);
    for (std::byte* place : places) {
      if (place == from) continue;
      if (mode == 1)
        copy_over_shared(place + at, from + at, now);
      else
        std::memcpy(place + at, from + at, now);
    }
  }
}

void pull(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const int mode = std::getenv("X_MODE") ? std::atoi(std::getenv("X_MODE")) : 0;
  if (bytes == 0 || to == from) return;
  if (mode == 1)
    copy_over_shared(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace vccl
