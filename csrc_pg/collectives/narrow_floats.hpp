// float16, bfloat16 and the 8-bit floats as bits: conversions to and from float32, exact, without the
// compiler's or torch's types.
//
// Written without branches, so that a loop over them vectorises. The results are those of the F16C
// instructions and of torch: round to nearest even, subnormals kept, NaN stays NaN and becomes quiet. Every
// step is sound too when the thread flushes subnormals (torch.set_flush_denormal): no intermediate float32 is
// subnormal unless the result is zero.
#pragma once

#include <cstdint>

namespace vccl {

static inline __attribute__((always_inline)) float float_of(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

static inline __attribute__((always_inline)) std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// All ones if a < b; both below 2^31, since the oldest vector instructions compare signed numbers only.
static inline __attribute__((always_inline)) std::uint32_t below(std::uint32_t a, std::uint32_t b) {
  return std::int32_t(a) < std::int32_t(b) ? ~std::uint32_t(0) : 0u;
}

static inline __attribute__((always_inline)) std::uint32_t select(std::uint32_t mask, std::uint32_t yes,
                                                                  std::uint32_t no) {
  return (mask & yes) | (~mask & no);
}

static inline __attribute__((always_inline)) float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  // A subnormal half is a whole number of 2^-24.
  const std::uint32_t subnormal = bits_of(float(std::int32_t(magnitude)) * 0x1p-24f);
  const std::uint32_t normal = (magnitude << 13) + (std::uint32_t(127 - 15) << 23);
  const std::uint32_t special = 0x7f800000u | (magnitude << 13) | (below(0x7c00u, magnitude) & 0x00400000u);
  const std::uint32_t finite = select(below(magnitude, 0x0400u), subnormal, normal);
  return float_of(sign | select(below(magnitude, 0x7c00u), finite, special));
}

static inline __attribute__((always_inline)) std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the result is a whole number of 2^-24, the unit in the last place of 0.5: the addition
  // rounds.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  // Half a unit less one, and one more for odd results: ties go to even. A carry runs into the exponent, and
  // from 65520 on into infinity, as it should.
  const std::uint32_t normal =
      (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (std::uint32_t(127 - 15) << 23)) >> 13;
  const std::uint32_t nan = below(0x7f800000u, magnitude) & (0x0200u | ((magnitude >> 13) & 0x03ffu));
  const std::uint32_t finite = select(below(magnitude, 0x38800000u), subnormal, normal);
  return std::uint16_t(sign | select(below(magnitude, 0x47800000u), finite, 0x7c00u | nan));
}

static inline __attribute__((always_inline)) float bfloat16_to_float(std::uint16_t narrow) {
  return float_of(std::uint32_t(narrow) << 16);
}

static inline __attribute__((always_inline)) std::uint16_t float_to_bfloat16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // The rounding carry would turn some NaNs into infinity or zero.
  const std::uint32_t nan = ((bits >> 16) & 0x8000u) | 0x7fc0u;
  return std::uint16_t(select(below(0x7f800000u, bits & 0x7fffffffu), nan, rounded));
}

static inline __attribute__((always_inline)) float float8_e4m3fn_to_float(std::uint8_t narrow) {
  const std::uint32_t sign = std::uint32_t(narrow & 0x80u) << 24;
  const std::uint32_t magnitude = narrow & 0x7fu;
  const std::uint32_t subnormal = bits_of(float(std::int32_t(magnitude)) * 0x1p-9f);
  const std::uint32_t normal = (magnitude << 20) + (std::uint32_t(127 - 7) << 23);
  const std::uint32_t finite = select(below(magnitude, 0x08u), subnormal, normal);
  return float_of(sign | select(below(magnitude, 0x7fu), finite, 0x7fc00000u));
}

// The format has no infinity: what is too large becomes the largest number, as in torch.
static inline __attribute__((always_inline)) std::uint8_t float_to_float8_e4m3fn(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // As for float16: 2^-9 is the unit in the last place of 2^14.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0x1p14f) - 0x46800000u;
  const std::uint32_t normal =
      (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (std::uint32_t(127 - 7) << 23)) >> 20;
  const std::uint32_t rounded = select(below(magnitude, 0x3c800000u), subnormal, normal);
  const std::uint32_t finite = select(below(0x7eu, rounded), 0x7eu, rounded);
  return std::uint8_t(sign | select(below(0x7f800000u, magnitude), 0x7fu, finite));
}

// The upper byte of a float16.
static inline __attribute__((always_inline)) float float8_e5m2_to_float(std::uint8_t narrow) {
  return half_to_float(std::uint16_t(narrow << 8));
}

static inline __attribute__((always_inline)) std::uint8_t float_to_float8_e5m2(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0x1p7f) - 0x43000000u;
  const std::uint32_t normal =
      (magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - (std::uint32_t(127 - 15) << 23)) >> 21;
  const std::uint32_t finite = select(below(magnitude, 0x38800000u), subnormal, normal);
  const std::uint32_t special = 0x7cu | (below(0x7f800000u, magnitude) & 0x03u);
  return std::uint8_t(sign | select(below(magnitude, 0x47800000u), finite, special));
}

}  // namespace vccl
