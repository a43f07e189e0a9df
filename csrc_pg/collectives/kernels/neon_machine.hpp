// What both files for NEON have in common: the conversions of float16, and packing. vectors.hpp says how this
// is included: after it, and after <arm_neon.h> and the pragmas.
//
// There are no stores past the caches. The processor's non-temporal stores are hints, which save nothing that
// a plain store of a whole line does not save.

namespace vccl {
namespace {

struct Neon {
  static VCCL_INLINE Floats widen_float16(Part<std::uint16_t> float16) {
    return reinterpret_cast<Floats>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(float16)));
  }
  static VCCL_INLINE void store_float16(std::byte* to, Floats floats) {
    const auto narrow = vcvt_f16_f32(reinterpret_cast<float32x4_t>(floats));
    __builtin_memcpy(to, &narrow, sizeof narrow);
  }
  static VCCL_INLINE Halves pack_float16(const Floats* from) {
    const auto low = vcvt_f16_f32(reinterpret_cast<float32x4_t>(from[0]));
    return reinterpret_cast<Halves>(vcvt_high_f16_f32(low, reinterpret_cast<float32x4_t>(from[1])));
  }
  static VCCL_INLINE Halves pack(Words low, Words high) {
    return reinterpret_cast<Halves>(
        vuzp1q_u16(reinterpret_cast<uint16x8_t>(low), reinterpret_cast<uint16x8_t>(high)));
  }
};

}  // namespace
}  // namespace vccl
