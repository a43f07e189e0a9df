#include "csrc_pg/collectives/many_reduction.hpp"

#include <algorithm>
#include <cstring>

namespace vccl {

namespace {

// Of partial results: with two inputs' share of the same length they fit the smallest first-level caches.
constexpr std::size_t kTileBytes = 8 * 1024;

}  // namespace

ManyReduction::ManyReduction(const Call& call, int size)
    : reduction_(*find_reduction(call.dtype, call.op)),
      element_(size_of(call.dtype)),
      tile_(kTileBytes / reduction_.partial_size),
      scalars_(static_cast<std::size_t>(size), call.op == ReduceOp::premul_sum ? call.factor : double(size)) {}

void ManyReduction::operator()(std::byte* result, const std::byte* const* inputs, std::size_t count) const {
  const std::size_t ranks = scalars_.size();
  if (ranks == 1 && reduction_.alone) {
    reduction_.alone(result, nullptr, inputs[0], count, scalars_[0]);
  } else if (ranks == 1) {
    if (result != inputs[0]) std::memcpy(result, inputs[0], count * element_);
  } else if (ranks == 2 && reduction_.only) {
    reduction_.only(result, inputs[0], inputs[1], count, scalars_[1]);
  } else {
    for (std::size_t at = 0; at < count; at += tile_) tile(result, inputs, at, std::min(tile_, count - at));
  }
}

void ManyReduction::tile(std::byte* result, const std::byte* const* inputs, std::size_t at,
                         std::size_t count) const {
  alignas(64) std::byte partial[kTileBytes];
  const std::size_t offset = at * element_, last = scalars_.size() - 1;
  std::size_t rank = 1;
  if (reduction_.start) {
    reduction_.start(partial, nullptr, inputs[0] + offset, count, scalars_[0]);
  } else {
    reduction_.first(partial, inputs[0] + offset, inputs[1] + offset, count, scalars_[1]);
    rank = 2;
  }
  for (; rank < last; ++rank) reduction_.middle(partial, partial, inputs[rank] + offset, count, scalars_[rank]);
  reduction_.last(result + offset, partial, inputs[last] + offset, count, scalars_[last]);
}

}  // namespace vccl
