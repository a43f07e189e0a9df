// Ring broadcast: a chain that begins at the root and follows the ring, block after block.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

namespace {

constexpr std::size_t kMinBlock = 32 * 1024, kMaxBlock = 128 * 1024;

int position_of(const Communicator& communicator, int rank) {
  int position = 0;
  while (communicator.ring_rank(position) != rank) ++position;
  return position;
}

// Many short blocks fill a long chain sooner; each costs two flags.
std::size_t block_length(std::size_t bytes, int size) {
  const std::size_t wanted = bytes / (2 * static_cast<std::size_t>(size));
  return std::clamp((wanted + 63) / 64 * 64, kMinBlock, kMaxBlock);
}

}  // namespace

void ring_broadcast(Communicator& communicator, const Call& call) {
  const int size = communicator.size();
  const int after_root = (communicator.ring_position() - position_of(communicator, call.root) + size) % size;
  const std::size_t bytes = call.count * size_of(call.dtype), block = block_length(bytes, size);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  const bool is_root = after_root == 0, is_last = after_root == size - 1;

  for (std::size_t offset = 0; offset < bytes; offset += block) {
    const std::size_t length = std::min(block, bytes - offset);
    if (!is_root) {
      std::memcpy(output + offset, communicator.left().take(offset, length), length);
      communicator.left().release();
    } else if (input != output) {
      std::memcpy(output + offset, input + offset, length);
    }
    if (!is_last) communicator.right().post(offset, length);
  }
}

}  // namespace vccl
