// The arithmetic of reductions: element-wise loops over the inputs of two ranks or more, chosen by dtype and
// ReduceOp.
//
// Sums and products of integers wrap. MIN and MAX propagate NaN. A result of bool is 0 or 1 whatever the
// inputs were: SUM, MAX and BOR are "or", PRODUCT, MIN and BAND are "and". AVG divides the sum once, at the
// end. It divides integers as C does (toward zero), after a sum that may have wrapped, as NCCL does. float16,
// bfloat16 and the 8-bit floats are added and multiplied in float32 and rounded once, at the end, as torch
// rounds; until then a partial result is a float32. PREMUL_SUM multiplies each rank's elements by that rank's
// factor before it adds them.
#pragma once

#include <cstddef>
#include <span>

#include "csrc_pg/collectives/reduce_op.hpp"

namespace vccl {

/// Says how results are stored. Past the caches (base/past_caches.hpp) they go straight from registers
/// to memory, where the result begins at a cache line and is not in the place of an input; the caller has to
/// call finish_stores() before anybody else may look. Elsewhere, and where the processor cannot, they are
/// stored plainly all the same.
enum class Stores : bool { plain, past_caches };

/// Says in which way a loop goes through its elements. The result is the same with any options.
struct LoopOptions {
  Stores stores = Stores::plain;
  int ways = 1;  // at how many places the loop goes on in turn: buffers/interleave.hpp
};

/// Computes out[i] = inputs[0][i] op inputs[1][i] op ... of `ranks` inputs, one or more, in their order. The
/// result has the same bits as that of the chain of two-operand loops. `out` may be one of the inputs, and
/// must overlap none otherwise. Any alignment will do. `scalars` has an entry for each input: the divisor of
/// AVG, or the factors of PREMUL_SUM.
using ManyKernel = void (*)(void* out, const std::byte* const* inputs, int ranks, std::size_t count,
                            const double* scalars, LoopOptions options);

/// Computes out[i] = a[i] op b[i] for `count` elements. `out` may be `a` or `b` where its elements have their
/// size, and must overlap neither otherwise. Any alignment will do. `scalar` is the divisor of AVG, or the
/// factor of PREMUL_SUM for `b`.
using Kernel = void (*)(void* out, const void* a, const void* b, std::size_t count, double scalar);

/// The loops of one reduction: of all ranks' elements at once, or along a chain of ranks, each of which adds
/// its own elements to a partial result.
///
/// With PREMUL_SUM an element has to be multiplied by its own rank. So `start` makes a partial result of the
/// first rank's element, and `first` is null.
struct Reduction {
  ManyKernel many;           // result <- elements
  Kernel first;              // partial <- element, element
  Kernel middle;             // partial <- partial, element
  Kernel last;               // result <- partial, element
  std::size_t partial_size;  // bytes of a partial result's element
  Kernel start = nullptr;    // partial <- element (`b`); null if an element is passed on as it is
};

/// Returns the loops with the widest instructions that the machine has, which give the same numbers on every
/// machine. Returns null if the ReduceOp has no meaning for the dtype: why_no_reduction() says why.
const Reduction* find_reduction(Dtype dtype, ReduceOp op) noexcept;

/// The loops as they are compiled for one kind of machine.
struct InstructionSet {
  const char* name;  // "avx2"
  const Reduction* (*find)(Dtype, ReduceOp) noexcept;
};

/// Returns those that this machine and its system can run. find_reduction() takes the first; the last is the
/// plain architecture, "portable".
std::span<const InstructionSet> instruction_sets() noexcept;

}  // namespace vccl
