// The reduction loops for x86-64 with AVX2 and F16C (every such processor since 2015). FMA is left out, so
// that results do not depend on the machine. No AVX-512: the loops wait for memory.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "csrc_pg/collectives/narrow_floats.hpp"
#include "csrc_pg/collectives/reduce_kernels.hpp"

// To the end of the file: templates are instantiated there.
#pragma GCC optimize("O3")
#pragma GCC target("avx2,f16c")

namespace vccl {
namespace {

typedef float Lanes __attribute__((vector_size(32)));

// Eight at a time in vectors, and what remains one by one; both to the same bits.
struct Float16 {
  using Bits = std::uint16_t;
  static constexpr std::size_t kLanes = 8;

  static inline __attribute__((always_inline)) float widen(std::uint16_t bits) { return half_to_float(bits); }
  static inline __attribute__((always_inline)) std::uint16_t narrow(float value) {
    return float_to_half(value);
  }
  static inline __attribute__((always_inline)) Lanes widen(__m128i bits) { return _mm256_cvtph_ps(bits); }
  static inline __attribute__((always_inline)) __m128i narrow(Lanes value) {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  }
};

struct Bfloat16 {
  using Bits = std::uint16_t;
  static constexpr std::size_t kLanes = 8;

  static inline __attribute__((always_inline)) float widen(std::uint16_t bits) {
    return bfloat16_to_float(bits);
  }
  static inline __attribute__((always_inline)) std::uint16_t narrow(float value) {
    return float_to_bfloat16(value);
  }
  static inline __attribute__((always_inline)) Lanes widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static inline __attribute__((always_inline)) __m128i narrow(Lanes value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(int(0x80000000u)));
    const __m256i nan = _mm256_or_si256(sign, _mm256_set1_epi32(0x7fc00000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
};

template <class N, bool kWide>
inline __attribute__((always_inline)) Lanes load(const char* from) {
  if constexpr (kWide)
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  else
    return N::widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

template <class N, bool kWide>
inline __attribute__((always_inline)) void store(char* to, Lanes value) {
  if constexpr (kWide)
    _mm256_storeu_ps(reinterpret_cast<float*>(to), value);
  else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), N::narrow(value));
}

}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/reduce_loops.hpp"

namespace vccl {
const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept {
  return find(dtype, op);
}
}  // namespace vccl

#endif
