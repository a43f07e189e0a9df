// Conversions between float32 and the bits of float16, bfloat16 and the 8-bit floats, for one number or for a
// vector of them (see vectors.hpp). They use neither the compiler's nor torch's types for these formats.
//
// The code has no branches, so that vectors take the same steps as single numbers. The results are those of
// the F16C instructions and of torch: they are rounded to nearest even, subnormals are kept, and NaN stays
// NaN and becomes quiet. The results are also right when the thread flushes subnormals
// (torch.set_flush_denormal), because no intermediate float32 is subnormal unless the result is zero.
#pragma once

#include <cstdint>
#include <type_traits>

namespace vccl {

#define VCCL_INLINE inline __attribute__((always_inline))

// The types of 32-bit integers and of float32 with as many elements as T.
template <class T>
struct Shape {
  typedef std::uint32_t Words __attribute__((vector_size(sizeof(T))));
  typedef std::int32_t Signed __attribute__((vector_size(sizeof(T))));
  typedef float Floats __attribute__((vector_size(sizeof(T))));
};
template <>
struct Shape<std::uint32_t> {
  using Words = std::uint32_t;
  using Signed = std::int32_t;
  using Floats = float;
};
template <>
struct Shape<float> : Shape<std::uint32_t> {};

template <class W>
static VCCL_INLINE auto float_of(W bits) {
  return __builtin_bit_cast(typename Shape<W>::Floats, bits);
}

template <class F>
static VCCL_INLINE auto bits_of(F value) {
  return __builtin_bit_cast(typename Shape<F>::Words, value);
}

// Returns a > b ? yes : no. Both must be below 2^31, since the oldest vector instructions compare signed
// numbers only, and only for "greater".
template <class W>
static VCCL_INLINE W if_above(W a, std::uint32_t b, W yes, W no) {
  using Signed = typename Shape<W>::Signed;
  return Signed(a) > std::int32_t(b) ? yes : no;
}

// Each format has a struct. widen() takes the format's bits at the upper end of 32 and ignores those below
// them. narrow() returns them at the lower end.
//
// float16_of_low() and float16_of_high() are for processors that convert float16. They take vectors of 16
// bits, read the 8 bits at that end, and return a float16 that is the number divided by kFloat16Scale.

struct Float16 {
  using Bits = std::uint16_t;

  template <class W>
  static VCCL_INLINE auto widen(W high) {
    const W sign = high & 0x80000000u;
    const W magnitude = (high >> 16) & 0x7fffu;
    // A subnormal is a whole number of 2^-24, which the subtraction leaves.
    const W subnormal = bits_of(float_of((magnitude << 13) + 0x38800000u) - 0x1p-14f);
    const W normal = (magnitude << 13) + (std::uint32_t(127 - 15) << 23);
    const W quiet = if_above(magnitude, 0x7c00u, W(W{} + 0x00400000u), W{});
    const W special = 0x7f800000u | (magnitude << 13) | quiet;
    const W finite = if_above(magnitude, 0x03ffu, normal, subnormal);
    return float_of(W(sign | if_above(magnitude, 0x7bffu, special, finite)));
  }

  template <class F>
  static VCCL_INLINE auto narrow(F value) {
    const auto bits = bits_of(value);
    using W = std::remove_const_t<decltype(bits)>;
    const W sign = (bits >> 16) & 0x8000u;
    const W magnitude = bits & 0x7fffffffu;
    // Below 2^-14 the result is a whole number of 2^-24, the unit in the last place of 0.5, so the addition
    // rounds to it.
    const W subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    // This adds half a unit less one, and one more for odd results, so that ties go to even. A carry runs
    // into the exponent, and from 65520 on into infinity, as it should.
    const W normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (std::uint32_t(127 - 15) << 23)) >> 13;
    const W nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
    const W special = if_above(magnitude, 0x7f800000u, nan, W(W{} + 0x7c00u));
    const W finite = if_above(magnitude, 0x387fffffu, normal, subnormal);
    return W(sign | if_above(magnitude, 0x477fffffu, special, finite));
  }
};

/// A sum of bfloat16 is made in float32: each rank's element goes through widen(), and partial results stay
/// float32, also on the way between ranks. Only the result goes through narrow(), once.
struct Bfloat16 {
  using Bits = std::uint16_t;

  template <class W>
  static VCCL_INLINE auto widen(W high) {
    return float_of(W(high & 0xffff0000u));
  }

  template <class F>
  static VCCL_INLINE auto narrow(F value) {
    const auto bits = bits_of(value);
    using W = std::remove_const_t<decltype(bits)>;
    // This adds half a unit of the result less one, and one more for odd results, so that ties go to even.
    const W rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    // The carry of the rounding would turn some NaNs into infinity or zero, so all become torch's NaN.
    const W nan = W{} + 0x7fc00000u;
    return W((value == value ? rounded : nan) >> 16);
  }
};

struct Float8E4M3 {
  using Bits = std::uint8_t;

  static constexpr float kFloat16Scale = 256;
  template <class H>
  static VCCL_INLINE H float16_of_high(H bytes) {
    typedef std::int16_t Signed __attribute__((vector_size(sizeof(H))));
    const H number = H(Signed(bytes) >> 1) & 0xbf80;
    return number | ((bytes & 0x7f00) == 0x7f00 ? H{} + 0x7e00 : H{});  // the second part makes NaN
  }
  template <class H>
  static VCCL_INLINE H float16_of_low(H bytes) {
    return float16_of_high(H(bytes << 8));
  }

  template <class W>
  static VCCL_INLINE auto widen(W high) {
    const W sign = high & 0x80000000u;
    const W magnitude = (high >> 4) & 0x07f00000u;
    // A subnormal is a whole number of 2^-9, which the subtraction leaves.
    const W subnormal = bits_of(float_of(magnitude + 0x3c800000u) - 0x1p-6f);
    const W normal = magnitude + (std::uint32_t(127 - 7) << 23);
    const W finite = if_above(magnitude, 0x007fffffu, normal, subnormal);
    return float_of(W(sign | if_above(magnitude, 0x07efffffu, W(W{} + 0x7fc00000u), finite)));
  }

  // The format has no infinity. What is too large becomes the largest number, as in torch.
  template <class F>
  static VCCL_INLINE auto narrow(F value) {
    const auto bits = bits_of(value);
    using W = std::remove_const_t<decltype(bits)>;
    const W sign = (bits >> 24) & 0x80u;
    const W magnitude = bits & 0x7fffffffu;
    // This rounds as for float16: 2^-9 is the unit in the last place of 2^14.
    const W subnormal = bits_of(float_of(magnitude) + 0x1p14f) - 0x46800000u;
    const W normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (std::uint32_t(127 - 7) << 23)) >> 20;
    const W rounded = if_above(magnitude, 0x3c7fffffu, normal, subnormal);
    const W finite = if_above(rounded, 0x7eu, W(W{} + 0x7eu), rounded);
    return W(sign | if_above(magnitude, 0x7f800000u, W(W{} + 0x7fu), finite));
  }
};

struct Float8E5M2 {
  using Bits = std::uint8_t;

  static constexpr float kFloat16Scale = 1;
  template <class H>
  static VCCL_INLINE H float16_of_high(H bytes) {
    return bytes & 0xff00;
  }
  template <class H>
  static VCCL_INLINE H float16_of_low(H bytes) {
    return bytes << 8;
  }

  // The format is the upper byte of a float16.
  template <class W>
  static VCCL_INLINE auto widen(W high) {
    return Float16::widen(W(high & 0xff000000u));
  }

  template <class F>
  static VCCL_INLINE auto narrow(F value) {
    const auto bits = bits_of(value);
    using W = std::remove_const_t<decltype(bits)>;
    const W sign = (bits >> 24) & 0x80u;
    const W magnitude = bits & 0x7fffffffu;
    const W subnormal = bits_of(float_of(magnitude) + 0x1p7f) - 0x43000000u;
    const W normal =
        (magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - (std::uint32_t(127 - 15) << 23)) >> 21;
    const W finite = if_above(magnitude, 0x387fffffu, normal, subnormal);
    const W special = if_above(magnitude, 0x7f800000u, W(W{} + 0x7fu), W(W{} + 0x7cu));
    return W(sign | if_above(magnitude, 0x477fffffu, special, finite));
  }
};

// The conversions of one number.

template <class N>
static VCCL_INLINE float to_float(typename N::Bits bits) {
  return N::widen(std::uint32_t(bits) << (32 - 8 * sizeof bits));
}
template <class N>
static VCCL_INLINE typename N::Bits from_float(float value) {
  return typename N::Bits(N::narrow(value));
}

}  // namespace vccl
