#include "csrc_pg/collectives/many_reduction.hpp"

#include <algorithm>
#include <cstring>

namespace vccl {

namespace {

// Of partial results. Longer ones save calls, and make the processor fetch less ahead of each input.
constexpr std::size_t kTileBytes = 2 * 1024;

}  // namespace

ManyReduction::ManyReduction(const Call& call, int size)
    : reduction_(*find_reduction(call.dtype, call.op)),
      element_(size_of(call.dtype)),
      tile_(kTileBytes / reduction_.partial_size),
      last_(size - 1),
      scalars_(size) {
  for (int rank = 0; rank < size; ++rank)
    scalars_.add(call.op == ReduceOp::premul_sum ? call.factor : double(size));
}

void ManyReduction::operator()(std::byte* result, const std::byte* const* inputs, std::size_t count) const {
  if (last_ == 0 && reduction_.alone) {
    reduction_.alone(result, nullptr, inputs[0], count, scalars_[0]);
  } else if (last_ == 0) {
    if (result != inputs[0]) std::memcpy(result, inputs[0], count * element_);
  } else if (last_ == 1 && reduction_.only) {
    reduction_.only(result, inputs[0], inputs[1], count, scalars_[1]);
  } else if (reduction_.many) {
    reduction_.many(result, inputs, last_ + 1, count, scalars_[0]);
  } else {
    for (std::size_t at = 0; at < count; at += tile_) tile(result, inputs, at, std::min(tile_, count - at));
  }
}

void ManyReduction::tile(std::byte* result, const std::byte* const* inputs, std::size_t at,
                         std::size_t count) const {
  alignas(64) std::byte partial[kTileBytes];
  const std::size_t offset = at * element_;
  int rank = 1;
  if (reduction_.start) {
    reduction_.start(partial, nullptr, inputs[0] + offset, count, scalars_[0]);
  } else {
    reduction_.first(partial, inputs[0] + offset, inputs[1] + offset, count, scalars_[1]);
    rank = 2;
  }
  for (; rank < last_; ++rank)
    reduction_.middle(partial, partial, inputs[rank] + offset, count, scalars_[rank]);
  reduction_.last(result + offset, partial, inputs[last_] + offset, count, scalars_[last_]);
}

}  // namespace vccl
