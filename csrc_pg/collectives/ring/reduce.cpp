// Ring reduce: blocks go along a chain that begins to the right of the root and follows the ring to it.
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/ring/chain.hpp"
#include "csrc_pg/collectives/ring/chain_reduction.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"

namespace vccl {

void ring_reduce(Communicator& communicator, const Call& call) {
  if (call.count == 0) return;
  const int size = communicator.size(), after_root = steps_after(communicator, call.root);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  if (size == 1) {
    reduce_alone(call, call.count, input, output);
    return;
  }
  const std::size_t element = size_of(call.dtype), bytes = call.count * element;
  const bool is_root = after_root == 0, follows_first = after_root == 2 || (is_root && size == 2);
  ChainReduction chain(communicator, call, Partials::in_slots);

  in_blocks(bytes, chain.block_bytes(chain_block_bytes(bytes, size)),
            [&](std::size_t offset, std::size_t length) {
              const std::size_t count = length / element;
              if (after_root == 1)
                chain.begin(offset, input + offset, count);
              else
                chain.add(offset, input + offset, is_root ? output + offset : nullptr, count, follows_first,
                          is_root);
            });
}

}  // namespace vccl
