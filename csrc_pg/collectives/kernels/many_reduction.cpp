#include "csrc_pg/collectives/kernels/many_reduction.hpp"

#include <cstring>

namespace vccl {

double scalar_of(const Call& call, int size) {
  return call.op == ReduceOp::premul_sum ? call.factor : double(size);
}

ManyReduction::ManyReduction(const Call& call, int size)
    : reduction_(*find_reduction(call.dtype, call.op)),
      element_(size_of(call.dtype)),
      size_(size),
      scalars_(size) {
  for (int rank = 0; rank < size; ++rank) scalars_.add(scalar_of(call, size));
}

void ManyReduction::operator()(std::byte* result, const std::byte* const* inputs, std::size_t count,
                               LoopOptions options) const {
  // A single rank's elements stay as they are, down to the bits of a NaN, unless the reduction is PREMUL_SUM.
  if (size_ > 1 || reduction_.start)
    reduction_.many(result, inputs, size_, count, scalars_.data(), options);
  else if (result != inputs[0])
    std::memcpy(result, inputs[0], count * element_);
}

void reduce_alone(const Call& call, std::size_t count, const void* input, void* output) {
  const auto* elements = static_cast<const std::byte*>(input);
  ManyReduction(call, 1)(static_cast<std::byte*>(output), &elements, count);
}

}  // namespace vccl
