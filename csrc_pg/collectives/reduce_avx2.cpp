// The reduction loops for x86-64 with AVX2 and F16C (every such processor since 2015). FMA is left out, so
// that results do not depend on the machine.
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
#pragma GCC target("avx2,f16c")

#include "csrc_pg/collectives/narrow_floats.hpp"

namespace vccl {
namespace {

constexpr int kVectorBytes = 32;
typedef float Floats __attribute__((vector_size(kVectorBytes)));

struct Machine {
  static VCCL_INLINE void load(Float16, const std::byte* from, __m256* to) {
    const auto* halves = reinterpret_cast<const __m128i*>(from);
    to[0] = _mm256_cvtph_ps(_mm_loadu_si128(halves));
    to[1] = _mm256_cvtph_ps(_mm_loadu_si128(halves + 1));
  }
  static VCCL_INLINE __m256i pack(Float16, const __m256* from) {
    return _mm256_set_m128i(_mm256_cvtps_ph(from[1], _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(from[0], _MM_FROUND_TO_NEAREST_INT));
  }

  // Through float16, which has every number of float8_e5m2, and every one of float8_e4m3fn divided by 256.
  // The even bytes, then the odd ones.
  static VCCL_INLINE void load_shuffled(Float8E5M2, const std::byte* from, __m256* to) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    widen(_mm256_slli_epi16(bytes, 8), to);
    widen(_mm256_and_si256(bytes, _mm256_set1_epi16(short(0xff00))), to + 2);
  }
  static VCCL_INLINE void load_shuffled(Float8E4M3, const std::byte* from, __m256* to) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    widen(divided(_mm256_slli_epi16(bytes, 8)), to);
    widen(divided(bytes), to + 2);
    for (int v = 0; v < 4; ++v) to[v] *= 256.0f;
  }
  template <class N>
  static VCCL_INLINE __m256i pack_shuffled(N, const __m256* from)
    requires(sizeof(typename N::Bits) == 1)
  {
    const __m256i even = narrow<N>(from), odd = narrow<N>(from + 2);
    return _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
  }

  template <class V>
  static VCCL_INLINE void stream(std::byte* to, V value) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
  }

 private:
  static VCCL_INLINE void widen(__m256i halves, __m256* to) {
    to[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    to[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
  // Of float8_e4m3fn in the upper byte of 16 bits.
  static VCCL_INLINE __m256i divided(__m256i high) {
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(short(0xbf80)));
    const __m256i all = _mm256_set1_epi16(0x7f00);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(high, all), all);
    return _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  }
  // The bytes at the lower end of 16 bits, in the order of widen().
  template <class N>
  static VCCL_INLINE __m256i narrow(const __m256* from) {
    const auto low = N::narrow((Floats)from[0]), high = N::narrow((Floats)from[1]);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
  }
};

}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/reduce_loops.hpp"

namespace vccl {
const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept {
  return find(dtype, op);
}
}  // namespace vccl

#endif
