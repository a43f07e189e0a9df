// The reduction loops for x86-64 with AVX2 and F16C (every such processor since 2015). The loops do
// not use FMA, so that results do not depend on the machine.
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
#pragma GCC target("avx2,f16c")

#include "csrc_pg/collectives/kernels/narrow_floats.hpp"

namespace vccl {
namespace {
constexpr int kVectorBytes = 32;
}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/vectors.hpp"

namespace vccl {
namespace {

struct Machine {
  static VCCL_INLINE Floats widen_float16(Part<std::uint16_t> float16) {
    return _mm256_cvtph_ps(reinterpret_cast<__m128i>(float16));
  }
  // The instruction that converts and stores at once would be slower.
  static VCCL_INLINE void store_float16(std::byte* to, Floats floats) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT));
  }
  static VCCL_INLINE Halves pack_float16(const Floats* from) {
    return reinterpret_cast<Halves>(_mm256_set_m128i(_mm256_cvtps_ph(from[1], _MM_FROUND_TO_NEAREST_INT),
                                                     _mm256_cvtps_ph(from[0], _MM_FROUND_TO_NEAREST_INT)));
  }
  static VCCL_INLINE Halves pack(Words low, Words high) {
    return reinterpret_cast<Halves>(_mm256_permute4x64_epi64(
        _mm256_packus_epi32(reinterpret_cast<__m256i>(low), reinterpret_cast<__m256i>(high)), 0xd8));
  }

  // A mask covers words of 4 bytes. The up to 3 bytes that are left after them make the next word.
  static VCCL_INLINE Words load_some(const std::byte* from, std::size_t bytes) {
    const int whole = whole_words(bytes);
    std::uint32_t last = 0;
    if (bytes < kVectorBytes) {
      const std::byte* const rest = from + 4 * whole;
      if (bytes & 2) last = load<std::uint16_t>(rest);
      if (bytes & 1) last |= bytes & 2 ? std::uint32_t(rest[2]) << 16 : std::uint32_t(rest[0]);
    }
    const auto words =
        _mm256_maskload_epi32(reinterpret_cast<const int*>(from), reinterpret_cast<__m256i>(kIndex < whole));
    return reinterpret_cast<Words>(words) | (kIndex == whole ? Words{} + last : Words{});
  }
  static VCCL_INLINE void store_some(std::byte* to, const std::byte* from, std::size_t bytes) {
    const int whole = whole_words(bytes);
    _mm256_maskstore_epi32(reinterpret_cast<int*>(to), reinterpret_cast<__m256i>(kIndex < whole),
                           reinterpret_cast<__m256i>(load<Words>(from)));
    if (bytes >= kVectorBytes) return;
    const std::size_t at = 4 * whole;
    if (bytes & 2) store(to + at, load<std::uint16_t>(from + at));
    if (bytes & 1) to[at + (bytes & 2)] = from[at + (bytes & 2)];
  }

  template <class V>
  static VCCL_INLINE void store_past_caches(std::byte* to, V value) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(value));
  }

 private:
  static constexpr Vector<std::int32_t> kIndex = {0, 1, 2, 3, 4, 5, 6, 7};
  static VCCL_INLINE int whole_words(std::size_t bytes) {
    return bytes < kVectorBytes ? int(bytes / 4) : kVectorBytes / 4;
  }
};

}  // namespace
}  // namespace vccl

#include "csrc_pg/collectives/kernels/loops.hpp"

namespace vccl {
const Reduction* find_avx2_reduction(Dtype dtype, ReduceOp op) noexcept {
  return find(dtype, op);
}
}  // namespace vccl

#endif
