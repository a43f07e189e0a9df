// bfloat16 and pairs of it.
#pragma once

#include "vccl_cuda/narrow.h"

struct __nv_bfloat16_raw {
  unsigned short x;
};
struct __align__(2) __nv_bfloat16 {
  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(const __nv_bfloat16_raw& raw) : __x(raw.x) {}
  operator __nv_bfloat16_raw() const { return {__x}; }
#ifndef __CUDA_NO_BFLOAT16_CONVERSIONS__
  __nv_bfloat16(float x) : __x(::vccl_cuda::bfloat16_bits(x)) {}
  __nv_bfloat16(double x) : __nv_bfloat16(static_cast<float>(x)) {}
  __nv_bfloat16(int x) : __nv_bfloat16(static_cast<float>(x)) {}
  operator float() const { return ::vccl_cuda::bfloat16_value(__x); }
#endif

 protected:
  unsigned short __x;
  friend float __bfloat162float(__nv_bfloat16);
};
struct __align__(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  constexpr __nv_bfloat162(const __nv_bfloat16& x, const __nv_bfloat16& y) : x(x), y(y) {}
};
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16(float x) {
  return __nv_bfloat16_raw{::vccl_cuda::bfloat16_bits(x)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return ::vccl_cuda::bfloat16_value(x.__x);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return __float2bfloat16(x);
}
inline __nv_bfloat16 __double2bfloat16(double x) {
  return __float2bfloat16(static_cast<float>(x));
}
inline __nv_bfloat16 __int2bfloat16_rn(int x) {
  return __float2bfloat16(static_cast<float>(x));
}
inline __nv_bfloat16 __int2bfloat16_rz(int x) {
  unsigned bits = ::vccl_cuda::float_bits(static_cast<float>(x));
  return __nv_bfloat16_raw{static_cast<unsigned short>(bits >> 16)};
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16_raw{bits};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
  return static_cast<__nv_bfloat16_raw>(x).x;
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
  return {x, x};
}
inline __nv_bfloat162 __float2bfloat162_rn(float x) {
  return {__float2bfloat16(x), __float2bfloat16(x)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16(x), __float2bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) {
  return __floats2bfloat162_rn(x.x, x.y);
}
inline float2 __bfloat1622float2(__nv_bfloat162 x) {
  return {__bfloat162float(x.x), __bfloat162float(x.y)};
}
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x) {
  return x.x;
}
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x) {
  return x.y;
}

VCCL_CUDA_NARROW(__nv_bfloat16, __nv_bfloat162, __float2bfloat16, __bfloat162float)
VCCL_CUDA_NARROW_ATOMICS(__nv_bfloat16, __nv_bfloat162)
#ifndef __CUDA_NO_BFLOAT16_OPERATORS__
VCCL_CUDA_NARROW_OPERATORS(__nv_bfloat16, __nv_bfloat162)
#endif
#ifndef __CUDA_NO_BFLOAT162_OPERATORS__
VCCL_CUDA_NARROW_OPERATORS2(__nv_bfloat162)
#endif
