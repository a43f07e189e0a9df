#include "csrc_pg/collectives/direct_reduction.hpp"

#include <cstdlib>
#include <cstring>

#include "csrc_pg/collectives/block_copy.hpp"
#include "csrc_pg/collectives/many_reduction.hpp"

namespace vccl {

void reduce_directly(const Direct& direct, const Call& call, std::size_t begin, std::size_t count,
                     std::span<std::byte* const> outputs) {
  static const int mode = std::getenv("X_MODE") ? std::atoi(std::getenv("X_MODE")) : 0;
  static const std::size_t block_bytes = std::getenv("X_BLOCK") ? std::atoi(std::getenv("X_BLOCK")) : 16384;
  if (count == 0) return;
  ManyReduction reduce(call, direct.size());
  if (call.op == ReduceOp::premul_sum)
    for (int rank = 0; rank < direct.size(); ++rank) reduce.set_factor(rank, direct.factor(rank));
  const std::size_t element = direct.element(), block = block_bytes / element;
  std::vector<const std::byte*> inputs = direct.inputs(begin * element);
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t now = std::min(block, count - at), offset = at * element;
    if (mode == 2)
      for (auto* p : inputs)
        for (std::size_t i = 0; i < now * element; i += 64) asm volatile("prefetchw %0" : : "m"(p[i]));
    reduce(outputs[0] + offset, inputs.data(), now);
    for (std::size_t i = 1; i < outputs.size(); ++i) {
      if (mode == 1)
        copy_over_shared(outputs[i] + offset, outputs[0] + offset, now * element);
      else
        std::memcpy(outputs[i] + offset, outputs[0] + offset, now * element);
    }
    for (auto& input : inputs) input += now * element;
  }
}

}  // namespace vccl
