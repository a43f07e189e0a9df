// The reduction loops for what the compiler takes as the plain architecture: SSE2 on x86-64, NEON on arm64.
// They use no instruction that converts floats, so other instruction sets are tested against them.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"

// The loops write out their vectors; the compiler's own vectors would only slow down the loops for what is
// left over.
#pragma GCC optimize("O3,no-tree-vectorize,fp-contract=off")

#include "csrc_pg/collectives/kernels/narrow_floats.hpp"

namespace vccl {
namespace {
constexpr int kVectorBytes = 16;
}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/vectors.hpp"

namespace vccl {
namespace {
struct Machine {
#if defined(__x86_64__)
  template <class V>
  static VCCL_INLINE void store_past_caches(std::byte* to, V value) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(value));
  }
#endif
};
}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/loops.hpp"

namespace vccl {
const Reduction* find_portable_reduction(Dtype dtype, ReduceOp op) noexcept {
  return find(dtype, op);
}
}  // namespace vccl
