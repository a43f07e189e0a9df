// What half and bfloat16 have in common: arithmetic is that of float, rounded to the nearest value.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vccl_cuda/qualifiers.h"
#include "vccl_cuda/vector_types.h"

namespace vccl_cuda VCCL_CUDA_HIDDEN {

inline std::uint32_t float_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float bits_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline unsigned short half_bits(float x) {
  const std::uint32_t bits = float_bits(x);
  std::uint32_t size = bits & 0x7fffffffu;
  const auto sign = static_cast<unsigned short>(bits >> 16 & 0x8000u);
  if (size > 0x7f800000u) return 0x7fff;                                       // NaN
  if (size >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // rounds to infinity
  if (size < 0x38800000u) {
    // Below the normal numbers of half: the addition rounds to multiples of the smallest one.
    const float sum = bits_float(size) + 0.5f;
    return static_cast<unsigned short>(sign | (float_bits(sum) - float_bits(0.5f)));
  }
  size += 0xc8000fffu + (size >> 13 & 1u);
  return static_cast<unsigned short>(sign | size >> 13);
}
inline float half_value(unsigned short bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}

inline unsigned short bfloat16_bits(float x) {
  std::uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  bits += 0x7fffu + (bits >> 16 & 1u);
  return static_cast<unsigned short>(bits >> 16);
}
inline float bfloat16_value(unsigned short bits) {
  return bits_float(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace vccl_cuda

// The functions of CUDA that have the same names for both types. T is the type, T2 a pair of it.
#define VCCL_CUDA_NARROW(T, T2, to, from)                                                                     \
  inline T __hadd(T a, T b) { return to(from(a) + from(b)); }                                                 \
  inline T __hsub(T a, T b) { return to(from(a) - from(b)); }                                                 \
  inline T __hmul(T a, T b) { return to(from(a) * from(b)); }                                                 \
  inline T __hdiv(T a, T b) { return to(from(a) / from(b)); }                                                 \
  inline T __hfma(T a, T b, T c) { return to(::fmaf(from(a), from(b), from(c))); }                            \
  inline T __hneg(T a) { return to(-from(a)); }                                                               \
  inline T __habs(T a) { return to(::fabsf(from(a))); }                                                       \
  inline T __hmax(T a, T b) { return to(::fmaxf(from(a), from(b))); }                                         \
  inline T __hmin(T a, T b) { return to(::fminf(from(a), from(b))); }                                         \
  inline bool __heq(T a, T b) { return from(a) == from(b); }                                                  \
  inline bool __hne(T a, T b) { return from(a) != from(b); }                                                  \
  inline bool __hlt(T a, T b) { return from(a) < from(b); }                                                   \
  inline bool __hle(T a, T b) { return from(a) <= from(b); }                                                  \
  inline bool __hgt(T a, T b) { return from(a) > from(b); }                                                   \
  inline bool __hge(T a, T b) { return from(a) >= from(b); }                                                  \
  inline bool __hisnan(T a) { return std::isnan(from(a)); }                                                   \
  inline int __hisinf(T a) { return std::isinf(from(a)) ? (from(a) < 0 ? -1 : 1) : 0; }                       \
  inline T hexp(T a) { return to(::expf(from(a))); }                                                          \
  inline T hexp2(T a) { return to(::exp2f(from(a))); }                                                        \
  inline T hlog(T a) { return to(::logf(from(a))); }                                                          \
  inline T hlog2(T a) { return to(::log2f(from(a))); }                                                        \
  inline T hsin(T a) { return to(::sinf(from(a))); }                                                          \
  inline T hcos(T a) { return to(::cosf(from(a))); }                                                          \
  inline T hsqrt(T a) { return to(::sqrtf(from(a))); }                                                        \
  inline T hrsqrt(T a) { return to(1.0f / ::sqrtf(from(a))); }                                                \
  inline T hrcp(T a) { return to(1.0f / from(a)); }                                                           \
  inline T hfloor(T a) { return to(::floorf(from(a))); }                                                      \
  inline T hceil(T a) { return to(::ceilf(from(a))); }                                                        \
  inline T2 __hadd2(T2 a, T2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }                              \
  inline T2 __hsub2(T2 a, T2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }                              \
  inline T2 __hmul2(T2 a, T2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }                              \
  inline T2 __h2div(T2 a, T2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }                              \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }              \
  inline T2 __hneg2(T2 a) { return {__hneg(a.x), __hneg(a.y)}; }                                              \
  inline T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                                              \
  inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                              \
  inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                              \
  inline T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }                                                    \
  inline float __low2float(T2 a) { return from(a.x); }                                                        \
  inline float __high2float(T2 a) { return from(a.y); }

#define VCCL_CUDA_NARROW_OPERATORS(T, T2)                                                                     \
  inline T operator+(T a, T b) { return __hadd(a, b); }                                                       \
  inline T operator-(T a, T b) { return __hsub(a, b); }                                                       \
  inline T operator*(T a, T b) { return __hmul(a, b); }                                                       \
  inline T operator/(T a, T b) { return __hdiv(a, b); }                                                       \
  inline T operator-(T a) { return __hneg(a); }                                                               \
  inline T& operator+=(T& a, T b) { return a = __hadd(a, b); }                                                \
  inline T& operator-=(T& a, T b) { return a = __hsub(a, b); }                                                \
  inline T& operator*=(T& a, T b) { return a = __hmul(a, b); }                                                \
  inline T& operator/=(T& a, T b) { return a = __hdiv(a, b); }                                                \
  inline bool operator==(T a, T b) { return __heq(a, b); }                                                    \
  inline bool operator!=(T a, T b) { return __hne(a, b); }                                                    \
  inline bool operator<(T a, T b) { return __hlt(a, b); }                                                     \
  inline bool operator<=(T a, T b) { return __hle(a, b); }                                                    \
  inline bool operator>(T a, T b) { return __hgt(a, b); }                                                     \
  inline bool operator>=(T a, T b) { return __hge(a, b); }
#define VCCL_CUDA_NARROW_OPERATORS2(T2)                                                                       \
  inline T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }                                                   \
  inline T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }                                                   \
  inline T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }                                                   \
  inline T2 operator/(T2 a, T2 b) { return __h2div(a, b); }                                                   \
  inline T2& operator+=(T2& a, T2 b) { return a = __hadd2(a, b); }

#ifdef __CUDACC__
#include "vccl_cuda/atomics.h"
#define VCCL_CUDA_NARROW_ATOMICS(T, T2)                                                                       \
  inline T atomicAdd(T* address, T value) {                                                                   \
    return ::vccl_cuda::replace(address, [=](T old) { return __hadd(old, value); });                          \
  }                                                                                                           \
  inline T2 atomicAdd(T2* address, T2 value) {                                                                \
    return ::vccl_cuda::replace(address, [=](T2 old) { return __hadd2(old, value); });                        \
  }                                                                                                           \
  inline T __ldg(const T* address) { return *address; }
#else
#define VCCL_CUDA_NARROW_ATOMICS(T, T2)
#endif
