// The reduction loops for x86-64 with AVX-512 (F, BW, DQ and VL), where they are faster: those of bfloat16
// and of the 8-bit floats, which take many instructions to convert. The other loops wait for the caches with
// AVX2 already, and float16, which the processor converts, was slower. The loops do not use FMA, so that
// results do not depend on the machine.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/past_caches.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"

// The pragmas hold to the end of the file, where templates are instantiated. The loops write out their
// vectors; the compiler's own vectors would only slow down the loops for what is left over.
#pragma GCC optimize("O3,no-tree-vectorize,fp-contract=off")
// The intrinsics' headers initialize "undefined" vectors with themselves.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")

#include "csrc_pg/collectives/kernels/narrow_floats.hpp"

namespace vccl {
namespace {
constexpr int kVectorBytes = 64;
}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/vectors.hpp"

namespace vccl {
namespace {

struct Machine {
  static VCCL_INLINE Floats widen_float16(Part<std::uint16_t> float16) {
    return _mm512_cvtph_ps(reinterpret_cast<__m256i>(float16));
  }
  static VCCL_INLINE Halves pack(Words low, Words high) {
    const __m256i packed[] = {_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(low)),
                              _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(high))};
    return reinterpret_cast<Halves>(__builtin_shufflevector(packed[0], packed[1], 0, 1, 2, 3, 4, 5, 6, 7));
  }

  static VCCL_INLINE Words load_some(const std::byte* from, std::size_t bytes) {
    return reinterpret_cast<Words>(_mm512_maskz_loadu_epi8(first_bytes(bytes), from));
  }
  static VCCL_INLINE void store_some(std::byte* to, const std::byte* from, std::size_t bytes) {
    _mm512_mask_storeu_epi8(to, first_bytes(bytes), reinterpret_cast<__m512i>(load<Words>(from)));
  }

  template <class V>
  static VCCL_INLINE void store_past_caches(std::byte* to, V value) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(value));
  }

 private:
  static VCCL_INLINE __mmask64 first_bytes(std::size_t bytes) {
    return bytes < kVectorBytes ? (__mmask64(1) << bytes) - 1 : ~__mmask64(0);
  }
};

}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/loops.hpp"

namespace vccl {

const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept;  // avx2.cpp

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
