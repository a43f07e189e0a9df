// Chains: the ring, cut open at the root. What begins or ends at one rank travels along it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "transport/communicator.hpp"

namespace vccl {

/// How many steps to the right of `root` this rank is: 0 for the root, and at most size - 1.
inline int steps_after(const Communicator& communicator, int root) {
  int position = 0;
  while (communicator.ring_rank(position) != root) ++position;
  return (communicator.ring_position() - position + communicator.size()) % communicator.size();
}

/// The length of blocks that `bytes` bytes travel in. Many short ones fill a long chain sooner; each costs
/// two flags.
inline std::size_t chain_block(std::size_t bytes, int size) {
  constexpr std::size_t kMinBlock = 32 * 1024, kMaxBlock = 128 * 1024;
  const std::size_t wanted = bytes / (2 * static_cast<std::size_t>(size));
  return std::clamp((wanted + 63) / 64 * 64, kMinBlock, kMaxBlock);
}

/// Calls each(offset, length) for all of `bytes` bytes, `block` at a time.
template <class Each>
void in_blocks(std::size_t bytes, std::size_t block, Each each) {
  for (std::size_t offset = 0; offset < bytes; offset += block) each(offset, std::min(block, bytes - offset));
}

/// Passes on the block last taken, and releases it.
inline void pass_on(Communicator& communicator, const std::byte* block, std::size_t bytes) {
  std::memcpy(communicator.right().reserve(), block, bytes);
  communicator.left().release();
  communicator.right().commit(bytes);
}

}  // namespace vccl
