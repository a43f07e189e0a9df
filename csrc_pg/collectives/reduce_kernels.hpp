// The arithmetic of reductions: element-wise loops over two operands, chosen by dtype and operation.
//
// Sums and products of integers wrap. MIN and MAX propagate NaN. bool is 0 or 1 on the way out whatever came
// in: SUM, MAX and BOR are "or", PRODUCT, MIN and BAND are "and". AVG divides the sum once, at the end:
// integers as C divides (toward zero), after a sum that may have wrapped, as NCCL's does. float16, bfloat16
// and the 8-bit floats are added and multiplied in float32 and rounded once, at the end, as torch rounds:
// until then a partial result is a float32. PREMUL_SUM multiplies each rank's elements by that rank's factor
// before it adds them.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// out[i] = a[i] op b[i] for `count` elements. `out` may be `a` or `b` where its elements have their size,
/// and overlaps neither otherwise. Any alignment. `scalar` is the divisor of AVG, the factor of PREMUL_SUM.
using Kernel = void (*)(void* out, const void* a, const void* b, std::size_t count, double scalar);

/// out[i] = inputs[0][i] op inputs[1][i] op ..., of `ranks` inputs in their order: the same bits as the chain
/// of two-operand loops. `out` may be one of the inputs. Any alignment.
using ManyKernel = void (*)(void* out, const std::byte* const* inputs, int ranks, std::size_t count,
                            double scalar);

/// The loops of one reduction along a chain of ranks, each of which adds its own elements to a partial
/// result.
///
/// With PREMUL_SUM only its rank can begin with an element: `start` makes a partial result of it, and neither
/// `only` nor `first` is there.
struct Reduction {
  Kernel only;                // result <- element, element: a chain of two
  Kernel first;               // partial <- element, element
  Kernel middle;              // partial <- partial, element
  Kernel last;                // result <- partial, element
  std::size_t partial_size;   // bytes of a partial result's element
  Kernel start = nullptr;     // partial <- element (`b`); null: an element is passed on as it is
  Kernel alone = nullptr;     // result <- element (`b`): a chain of one; null: a copy
  ManyKernel many = nullptr;  // result <- elements of two ranks or more, at once; null: there is none
};

/// Null if the operation has no meaning for the dtype (AVG of bool, MAX of complex64). The widest
/// instructions that the machine has; the same numbers on every machine.
const Reduction* find_reduction(Dtype dtype, ReduceOp op) noexcept;

/// The same, for tests: with the loops of the plain architecture.
const Reduction* find_portable_reduction(Dtype dtype, ReduceOp op) noexcept;

}  // namespace vccl
