// The reduction loops for whatever the compiler takes as the plain architecture (SSE2 on x86-64, NEON on
// arm64).
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "csrc_pg/collectives/narrow_floats.hpp"
#include "csrc_pg/collectives/reduce_kernels.hpp"

// The build's -O2 vectorises few loops of unknown length.
#pragma GCC optimize("O3")

namespace vccl {
namespace {
struct Float16 {
  using Bits = std::uint16_t;
  static inline __attribute__((always_inline)) float widen(std::uint16_t bits) { return half_to_float(bits); }
  static inline __attribute__((always_inline)) std::uint16_t narrow(float value) {
    return float_to_half(value);
  }
};
struct Bfloat16 {
  using Bits = std::uint16_t;
  static inline __attribute__((always_inline)) float widen(std::uint16_t bits) {
    return bfloat16_to_float(bits);
  }
  static inline __attribute__((always_inline)) std::uint16_t narrow(float value) {
    return float_to_bfloat16(value);
  }
};
}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/reduce_loops.hpp"

namespace vccl {

const Reduction* find_portable_reduction(Dtype dtype, ReduceOp op) noexcept {
  return find(dtype, op);
}

#if defined(__x86_64__)
const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept;  // reduce_avx2.cpp

const Reduction* find_reduction(Dtype dtype, ReduceOp op) noexcept {
  // A choice at run time rather than target_clones: those are resolved by the loader, before a sanitizer's
  // runtime is ready, and cannot be tested against one another.
  static const bool kWide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return kWide ? find_avx2_reduction(dtype, op) : find_portable_reduction(dtype, op);
}
#else
const Reduction* find_reduction(Dtype dtype, ReduceOp op) noexcept {
  return find_portable_reduction(dtype, op);
}
#endif

}  // namespace vccl
