// The reduction loops for arm64 with the instructions that every such processor has, those that convert
// float16 among them. The loops do not use fused multiplications, so that results do not depend on the
// machine.
#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"

// The pragmas hold to the end of the file, where templates are instantiated. The loops write out their
// vectors; the compiler's own vectors would only slow down the loops for what is left over.
#pragma GCC optimize("O3,no-tree-vectorize,fp-contract=off")

#include "csrc_pg/collectives/kernels/narrow_floats.hpp"

namespace vccl {
namespace {
constexpr int kVectorBytes = 16;
}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/vectors.hpp"
// It needs the types of vectors.hpp.
#include "csrc_pg/collectives/kernels/neon_machine.hpp"

namespace vccl {
namespace {
struct Machine : Neon {};
}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/loops.hpp"

namespace vccl {
const Reduction* find_neon_reduction(Dtype dtype, ReduceOp op) noexcept {
  return find(dtype, op);
}
}  // namespace vccl

#endif
