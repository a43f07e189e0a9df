#include "csrc_pg/collectives/many_reduction.hpp"

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
                               Manner manner) const {
  // Of one rank's elements only PREMUL_SUM makes something else; not even a NaN's bits change.
  if (size_ > 1 || reduction_.start)
    reduction_.many(result, inputs, size_, count, scalars_.data(), manner);
  else if (result != inputs[0])
    std::memcpy(result, inputs[0], count * element_);
}

}  // namespace vccl
