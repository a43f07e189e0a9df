// The arithmetic of reductions: element-wise loops over two operands, chosen by dtype and operation.
//
// Sums and products of integers wrap. MIN and MAX propagate NaN. bool is 0 or 1 on the way out whatever came
// in: SUM and MAX are "or", PRODUCT and MIN are "and". AVG divides the sum once, at the end: integers as C
// divides (toward zero), after a sum that may have wrapped, as NCCL's does. float16 and bfloat16 are added
// and multiplied in float32 and rounded once, at the end: until then a partial result is a float32.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// out[i] = a[i] op b[i] for `count` elements. `out` may be `a` or `b` where its elements have their size,
/// and overlaps neither otherwise. Any alignment. `ranks` is the divisor of AVG.
using Kernel = void (*)(void* out, const void* a, const void* b, std::size_t count, int ranks);

/// The loops of one reduction along a chain of ranks, each of which adds its own elements to a partial
/// result.
struct Reduction {
  Kernel only;               // result <- element, element: a chain of two
  Kernel first;              // partial <- element, element
  Kernel middle;             // partial <- partial, element
  Kernel last;               // result <- partial, element
  std::size_t partial_size;  // bytes of a partial result's element
};

/// Null if the operation has no meaning for the dtype (AVG of bool). The widest instructions that the machine
/// has; the same numbers on every machine.
const Reduction* find_reduction(Dtype dtype, ReduceOp op) noexcept;

/// The same, for tests: with the loops of the plain architecture.
const Reduction* find_portable_reduction(Dtype dtype, ReduceOp op) noexcept;

}  // namespace vccl
