// Ring scatter: a chain that begins at the root. The chunk that goes farthest comes first, so that a rank's
// own chunk is the last one that it receives.
#include <cstring>

#include "csrc_pg/collectives/ring/chain.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"

namespace vccl {

void ring_scatter(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const int after_root = steps_after(communicator, call.root);
  const std::size_t chunk = call.count * size_of(call.dtype), block = chain_block_bytes(chunk, size);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  // Returns where a chunk begins in the root's window.
  const auto chunk_offset = [&](int target) {
    const int rank = communicator.ring_rank((position - after_root + target + size) % size);
    return static_cast<std::size_t>(rank) * chunk;
  };

  if (after_root == 0) {
    for (int target = size - 1; target > 0; --target)
      in_blocks(chunk, block, [&](std::size_t offset, std::size_t length) {
        communicator.right().post(chunk_offset(target) + offset, length);
      });
    const std::byte* own = input + chunk_offset(0);
    if (chunk > 0 && own != output) std::memcpy(output, own, chunk);
    return;
  }
  auto& left = communicator.left();
  for (int target = size - 1; target >= after_root; --target)
    in_blocks(chunk, block, [&](std::size_t offset, std::size_t length) {
      const std::byte* theirs =
          after_root == 1 ? left.take(chunk_offset(target) + offset, length) : left.take_committed(length);
      if (target > after_root) return pass_on(communicator, theirs, length);
      std::memcpy(output + offset, theirs, length);
      left.release();
    });
}

}  // namespace vccl
