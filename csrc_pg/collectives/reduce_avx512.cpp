// The reduction loops for x86-64 with AVX-512 (F, BW, DQ and VL), where they win: those of bfloat16 and of
// the 8-bit floats, which convert with many instructions. The others wait for the caches with AVX2 already,
// and float16, which the processor converts, was slower. FMA is left out, so that results do not depend on
// the machine.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "csrc_pg/collectives/reduce_kernels.hpp"
#include "transport/past_caches.hpp"

// To the end of the file: templates are instantiated there. Vectors are written out; the compiler's own would
// only add to the loops for what they leave.
#pragma GCC optimize("O3,no-tree-vectorize,fp-contract=off")
// The intrinsics' headers make "undefined" vectors out of themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")

#include "csrc_pg/collectives/narrow_floats.hpp"

namespace vccl {
namespace {

constexpr int kVectorBytes = 64;
typedef float Floats __attribute__((vector_size(kVectorBytes)));

struct Machine {
  // Through float16, which has every number of float8_e5m2, and every one of float8_e4m3fn divided by 256.
  // The even bytes, then the odd ones.
  static VCCL_INLINE void load_shuffled(Float8E5M2, const std::byte* from, __m512* to) {
    const __m512i bytes = _mm512_loadu_si512(from);
    widen(_mm512_slli_epi16(bytes, 8), to);
    widen(_mm512_and_si512(bytes, _mm512_set1_epi16(short(0xff00))), to + 2);
  }
  static VCCL_INLINE void load_shuffled(Float8E4M3, const std::byte* from, __m512* to) {
    const __m512i bytes = _mm512_loadu_si512(from);
    widen(divided(_mm512_slli_epi16(bytes, 8)), to);
    widen(divided(bytes), to + 2);
    for (int v = 0; v < 4; ++v) to[v] *= 256.0f;
  }
  template <class N>
  static VCCL_INLINE __m512i pack_shuffled(N, const __m512* from)
    requires(sizeof(typename N::Bits) == 1)
  {
    const __m512i even = narrow<N>(from), odd = narrow<N>(from + 2);
    return _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
  }

  template <class V>
  static VCCL_INLINE void stream(std::byte* to, V value) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
  }

 private:
  static VCCL_INLINE void widen(__m512i halves, __m512* to) {
    to[0] = _mm512_cvtph_ps(__builtin_shufflevector(halves, halves, 0, 1, 2, 3));
    to[1] = _mm512_cvtph_ps(__builtin_shufflevector(halves, halves, 4, 5, 6, 7));
  }
  // Of float8_e4m3fn in the upper byte of 16 bits.
  static VCCL_INLINE __m512i divided(__m512i high) {
    const __m512i half = _mm512_and_si512(_mm512_srai_epi16(high, 1), _mm512_set1_epi16(short(0xbf80)));
    const __m512i all = _mm512_set1_epi16(0x7f00);
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(high, all), all);
    return _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7e00));
  }
  // The bytes at the lower end of 16 bits, in the order of widen().
  template <class N>
  static VCCL_INLINE __m512i narrow(const __m512* from) {
    const auto low = N::narrow((Floats)from[0]), high = N::narrow((Floats)from[1]);
    return __builtin_shufflevector(_mm512_cvtepi32_epi16((__m512i)low), _mm512_cvtepi32_epi16((__m512i)high),
                                   0, 1, 2, 3, 4, 5, 6, 7);
  }
};

}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/reduce_loops.hpp"

namespace vccl {

const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept;  // reduce_avx2.cpp

const Reduction* find_avx512_reduction(Dtype dtype, ReduceOp op) noexcept {
  switch (dtype) {
    case Dtype::bfloat16:
      return of_narrow_float<Bfloat16>(op);
    case Dtype::float8_e4m3fn:
      return of_narrow_float<Float8E4M3>(op);
    case Dtype::float8_e5m2:
      return of_narrow_float<Float8E5M2>(op);
    default:
      return find_avx2_reduction(dtype, op);
  }
}

}  // namespace vccl

#endif
