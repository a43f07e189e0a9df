// Ring gather: a chain that ends at the root. Each rank sends its own chunk, then passes on those that come
// from the left, the nearest one first.
#include <cstring>

#include "csrc_pg/collectives/ring/chain.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"

namespace vccl {

void ring_gather(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const int after_root = steps_after(communicator, call.root);
  const std::size_t chunk = call.count * size_of(call.dtype), block = chain_block_bytes(chunk, size);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  const bool is_root = after_root == 0;

  const auto chunk_of = [&](int rank) { return output + static_cast<std::size_t>(rank) * chunk; };
  if (!is_root)
    in_blocks(chunk, block,
              [&](std::size_t offset, std::size_t length) { communicator.right().post(offset, length); });
  else if (chunk > 0 && input != chunk_of(communicator.rank()))
    std::memcpy(chunk_of(communicator.rank()), input, chunk);

  auto& left = communicator.left();
  const int coming = is_root ? size - 1 : after_root - 1;
  for (int behind = 1; behind <= coming; ++behind)
    in_blocks(chunk, block, [&](std::size_t offset, std::size_t length) {
      const std::byte* theirs = behind == 1 ? left.take(offset, length) : left.take_committed(length);
      if (!is_root) return pass_on(communicator, theirs, length);
      const int rank = communicator.ring_rank((position - behind + size) % size);
      std::memcpy(chunk_of(rank) + offset, theirs, length);
      left.release();
    });
}

}  // namespace vccl
