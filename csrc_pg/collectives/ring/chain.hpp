// Chains: the ring, cut open at the root. Collectives that begin or end at one rank send along a chain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "transport/communicator.hpp"

namespace vccl {

/// Returns how many steps to the right of `root` this rank is: 0 for the root, and at most size - 1.
inline int steps_after(const Communicator& communicator, int root) {
  int position = 0;
  while (communicator.ring_rank(position) != root) ++position;
  return (communicator.ring_position() - position + communicator.size()) % communicator.size();
}

/// Returns the length of the blocks that `bytes` bytes are sent in. Many short blocks fill a long chain
/// sooner, but each costs two flags.
inline std::size_t chain_block_bytes(std::size_t bytes, int size) {
  constexpr std::size_t kMinBlock = 32 * 1024, kMaxBlock = 128 * 1024;
  const std::size_t wanted = bytes / (2 * static_cast<std::size_t>(size));
  return std::clamp((wanted + 63) / 64 * 64, kMinBlock, kMaxBlock);
}

/// Calls each(offset, length) for all blocks of `bytes` bytes that are cut into blocks of `block` bytes.
template <class Each>
void in_blocks(std::size_t bytes, std::size_t block, Each each) {
  for (std::size_t offset = 0; offset < bytes; offset += block) each(offset, std::min(block, bytes - offset));
}

/// Passes on the block that was taken last, and releases it.
inline void pass_on(Communicator& communicator, const std::byte* block, std::size_t bytes) {
  std::memcpy(communicator.right().reserve(), block, bytes);
  communicator.left().release();
  communicator.right().commit(bytes);
}

}  // namespace vccl
