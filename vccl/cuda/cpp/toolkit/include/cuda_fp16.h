// half and half2.
#pragma once

#include "vccl_cuda/narrow.h"

struct __half_raw {
  unsigned short x;
};
struct __align__(2) __half {
  __half() = default;
  constexpr __half(const __half_raw& raw) : __x(raw.x) {}
  operator __half_raw() const { return {__x}; }
#ifndef __CUDA_NO_HALF_CONVERSIONS__
  __half(float x) : __x(::vccl_cuda::half_bits(x)) {}
  __half(double x) : __half(static_cast<float>(x)) {}
  __half(int x) : __half(static_cast<float>(x)) {}
  __half(unsigned x) : __half(static_cast<float>(x)) {}
  __half(long long x) : __half(static_cast<float>(x)) {}
  operator float() const { return ::vccl_cuda::half_value(__x); }
#endif

 protected:
  unsigned short __x;
  friend float __half2float(__half);
};
struct __half2_raw {
  unsigned short x, y;
};
struct __align__(4) __half2 {
  __half x, y;
  __half2() = default;
  constexpr __half2(const __half& x, const __half& y) : x(x), y(y) {}
};
typedef __half half;
typedef __half2 half2;
typedef __half __nv_half;
typedef __half2 __nv_half2;

inline __half __float2half(float x) {
  return __half_raw{::vccl_cuda::half_bits(x)};
}
inline float __half2float(__half x) {
  return ::vccl_cuda::half_value(x.__x);
}
inline __half __float2half_rn(float x) {
  return __float2half(x);
}
inline __half __double2half(double x) {
  return __float2half(static_cast<float>(x));
}
inline __half __int2half_rn(int x) {
  return __float2half(static_cast<float>(x));
}
inline int __half2int_rn(__half x) {
  return static_cast<int>(::rintf(__half2float(x)));
}
inline int __half2int_rz(__half x) {
  return static_cast<int>(__half2float(x));
}
inline __half __ushort_as_half(unsigned short bits) {
  return __half_raw{bits};
}
inline __half __short_as_half(short bits) {
  return __half_raw{static_cast<unsigned short>(bits)};
}
inline unsigned short __half_as_ushort(__half x) {
  return static_cast<__half_raw>(x).x;
}
inline short __half_as_short(__half x) {
  return static_cast<short>(__half_as_ushort(x));
}
inline __half2 __halves2half2(__half x, __half y) {
  return {x, y};
}
inline __half2 make_half2(__half x, __half y) {
  return {x, y};
}
inline __half2 __half2half2(__half x) {
  return {x, x};
}
inline __half2 __float2half2_rn(float x) {
  return {__float2half(x), __float2half(x)};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half(x), __float2half(y)};
}
inline __half2 __float22half2_rn(float2 x) {
  return __floats2half2_rn(x.x, x.y);
}
inline float2 __half22float2(__half2 x) {
  return {__half2float(x.x), __half2float(x.y)};
}
inline __half __low2half(__half2 x) {
  return x.x;
}
inline __half __high2half(__half2 x) {
  return x.y;
}
inline __half2 __low2half2(__half2 x) {
  return {x.x, x.x};
}
inline __half2 __high2half2(__half2 x) {
  return {x.y, x.y};
}
inline __half2 __lowhigh2highlow(__half2 x) {
  return {x.y, x.x};
}

VCCL_CUDA_NARROW(__half, __half2, __float2half, __half2float)
VCCL_CUDA_NARROW_ATOMICS(__half, __half2)
#ifndef __CUDA_NO_HALF_OPERATORS__
VCCL_CUDA_NARROW_OPERATORS(__half, __half2)
#endif
#ifndef __CUDA_NO_HALF2_OPERATORS__
VCCL_CUDA_NARROW_OPERATORS2(__half2)
#endif
