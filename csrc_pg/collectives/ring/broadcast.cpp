// Ring broadcast: blocks go along a chain that begins at the root and follows the ring.
#include <cstring>

#include "csrc_pg/collectives/ring/chain.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"

namespace vccl {

void ring_broadcast(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), after_root = steps_after(communicator, call.root);
  const std::size_t bytes = call.count * size_of(call.dtype);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  const bool is_root = after_root == 0, is_last = after_root == size - 1;

  in_blocks(bytes, chain_block_bytes(bytes, size), [&](std::size_t offset, std::size_t length) {
    if (!is_root) {
      std::memcpy(output + offset, communicator.left().take(offset, length), length);
      communicator.left().release();
    } else if (input != output) {
      std::memcpy(output + offset, input + offset, length);
    }
    if (!is_last) communicator.right().post(offset, length);
  });
}

}  // namespace vccl
