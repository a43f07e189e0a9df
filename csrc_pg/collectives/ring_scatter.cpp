// Ring scatter: a chain that begins at the root. The part that goes farthest comes first, so that a rank's
// own part is the last one that comes to it.
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/ring_chain.hpp"

namespace vccl {

void ring_scatter(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const int after_root = steps_after(communicator, call.root);
  const std::size_t part = call.count * size_of(call.dtype), block = chain_block(part, size);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  // In the root's window.
  const auto place = [&](int target) {
    const int rank = communicator.ring_rank((position - after_root + target + size) % size);
    return static_cast<std::size_t>(rank) * part;
  };

  if (after_root == 0) {
    for (int target = size - 1; target > 0; --target)
      in_blocks(part, block, [&](std::size_t offset, std::size_t length) {
        communicator.right().post(place(target) + offset, length);
      });
    const std::byte* own = input + place(0);
    if (part > 0 && own != output) std::memcpy(output, own, part);
    return;
  }
  auto& left = communicator.left();
  for (int target = size - 1; target >= after_root; --target)
    in_blocks(part, block, [&](std::size_t offset, std::size_t length) {
      const std::byte* theirs =
          after_root == 1 ? left.take(place(target) + offset, length) : left.take_committed(length);
      if (target > after_root) return pass_on(communicator, theirs, length);
      std::memcpy(output + offset, theirs, length);
      left.release();
    });
}

}  // namespace vccl
