// The reduction loops for arm64 with the instructions that convert bfloat16 (FEAT_BF16), for bfloat16 alone:
// the other loops gain nothing from a newer processor. The loops do not use fused multiplications, so that
// results do not depend on the machine.
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
#pragma GCC target("arch=armv8.2-a+bf16")

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

struct Machine : Neon {
  static VCCL_INLINE void store_bfloat16(std::byte* to, Floats floats) {
    const auto narrow = vcvt_bf16_f32(number_or_nan(floats));
    __builtin_memcpy(to, &narrow, sizeof narrow);
  }
  static VCCL_INLINE Halves pack_bfloat16(const Floats* from) {
    const auto low = vcvtq_low_bf16_f32(number_or_nan(from[0]));
    return reinterpret_cast<Halves>(vcvtq_high_bf16_f32(low, number_or_nan(from[1])));
  }

 private:
  // The instruction keeps the upper bits of a NaN. Bfloat16::narrow() makes every NaN torch's.
  static VCCL_INLINE float32x4_t number_or_nan(Floats floats) {
    const Words nan = Words{} + 0x7fc00000u;
    return reinterpret_cast<float32x4_t>(floats == floats ? reinterpret_cast<Words>(floats) : nan);
  }
};

}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/loops.hpp"

namespace vccl {

const Reduction* find_neon_reduction(Dtype dtype, ReduceOp op) noexcept;  // neon.cpp

// MIN and MAX make no new number. Where the thread flushes subnormals, the instruction would make one a zero,
// and plain integer arithmetic keeps it.
const Reduction* find_neon_bfloat16_reduction(Dtype dtype, ReduceOp op) noexcept {
  const bool rounds = op != ReduceOp::min && op != ReduceOp::max;
  return dtype == Dtype::bfloat16 && rounds ? of_narrow_float<Bfloat16>(op) : find_neon_reduction(dtype, op);
}

}  // namespace vccl

#endif
