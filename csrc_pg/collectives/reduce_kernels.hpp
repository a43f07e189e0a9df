// The arithmetic of reductions: element-wise loops over the inputs of two ranks or more, chosen by dtype and
// operation.
//
// Sums and products of integers wrap. MIN and MAX propagate NaN. bool is 0 or 1 on the way out whatever came
// in: SUM, MAX and BOR are "or", PRODUCT, MIN and BAND are "and". AVG divides the sum once, at the end:
// integers as C divides (toward zero), after a sum that may have wrapped, as NCCL's does. float16, bfloat16
// and the 8-bit floats are added and multiplied in float32 and rounded once, at the end, as torch rounds:
// until then a partial result is a float32. PREMUL_SUM multiplies each rank's elements by that rank's factor
// before it adds them.
#pragma once

#include <cstddef>
#include <span>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// How results are stored. Past the caches (transport/past_caches.hpp): straight from registers, where they
/// begin at a cache line and are in the place of no input; before anybody else may look, finish_stores() is
/// the caller's. Elsewhere, and where the processor cannot, plainly all the same.
enum class Stores : bool { plain, past_caches };

/// How a loop goes about its elements. It changes no number.
struct Manner {
  Stores stores = Stores::plain;
  int strands = 1;  // at as many places by turns: strands.hpp
};

/// out[i] = inputs[0][i] op inputs[1][i] op ..., of `ranks` inputs, one or more, in their order: the same
/// bits as the chain of two-operand loops. `out` may be one of the inputs, and overlaps none otherwise. Any
/// alignment. `scalars` has an entry for each input: the divisor of AVG, the factors of PREMUL_SUM.
using ManyKernel = void (*)(void* out, const std::byte* const* inputs, int ranks, std::size_t count,
                            const double* scalars, Manner manner);

/// out[i] = a[i] op b[i] for `count` elements. `out` may be `a` or `b` where its elements have their size,
/// and overlaps neither otherwise. Any alignment. `scalar` is the divisor of AVG, the factor of PREMUL_SUM
/// for `b`.
using Kernel = void (*)(void* out, const void* a, const void* b, std::size_t count, double scalar);

/// The loops of one reduction: of all ranks' elements at once, or along a chain of ranks, each of which adds
/// its own elements to a partial result.
///
/// With PREMUL_SUM only its rank can begin with an element: `start` makes a partial result of it, and `first`
/// is not there.
struct Reduction {
  ManyKernel many;           // result <- elements
  Kernel first;              // partial <- element, element
  Kernel middle;             // partial <- partial, element
  Kernel last;               // result <- partial, element
  std::size_t partial_size;  // bytes of a partial result's element
  Kernel start = nullptr;    // partial <- element (`b`); null: an element is passed on as it is
};

/// Null if the operation has no meaning for the dtype (AVG of bool, MAX of complex64). The widest
/// instructions that the machine has; the same numbers on every machine.
const Reduction* find_reduction(Dtype dtype, ReduceOp op) noexcept;

/// The loops as they are compiled for one kind of machine.
struct InstructionSet {
  const char* name;  // "avx2"
  const Reduction* (*find)(Dtype, ReduceOp) noexcept;
};

/// Those that this machine and its system can run. The first is find_reduction()'s, the last is the plain
/// architecture, "portable".
std::span<const InstructionSet> instruction_sets() noexcept;

}  // namespace vccl
