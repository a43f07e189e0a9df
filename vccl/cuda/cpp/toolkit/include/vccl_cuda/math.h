// Functions of kernels that are in no C library: intrinsics, min and max, loads and bits.
//
// Intrinsics that are fast and rough on GPUs are exact here, so results can differ in the last digits.
#pragma once

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "vccl_cuda/vector_types.h"

#define CUDART_INF_F (__builtin_inff())
#define CUDART_NAN_F (__builtin_nanf(""))
#define CUDART_INF (__builtin_inf())
#define CUDART_NAN (__builtin_nan(""))
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931e+0

// CUDA's overloads, no more: what is ambiguous to its compiler is ambiguous here.
#define VCCL_CUDA_MIN_MAX(R, A, B)                                      \
  inline R min(A a, B b) {                                              \
    return static_cast<R>(b) < static_cast<R>(a) ? static_cast<R>(b) : static_cast<R>(a); \
  }                                                                     \
  inline R max(A a, B b) {                                              \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); \
  }
VCCL_CUDA_MIN_MAX(int, int, int)
VCCL_CUDA_MIN_MAX(unsigned int, unsigned int, unsigned int)
VCCL_CUDA_MIN_MAX(unsigned int, int, unsigned int)
VCCL_CUDA_MIN_MAX(unsigned int, unsigned int, int)
VCCL_CUDA_MIN_MAX(long, long, long)
VCCL_CUDA_MIN_MAX(unsigned long, unsigned long, unsigned long)
VCCL_CUDA_MIN_MAX(unsigned long, long, unsigned long)
VCCL_CUDA_MIN_MAX(unsigned long, unsigned long, long)
VCCL_CUDA_MIN_MAX(long long, long long, long long)
VCCL_CUDA_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
VCCL_CUDA_MIN_MAX(unsigned long long, long long, unsigned long long)
VCCL_CUDA_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef VCCL_CUDA_MIN_MAX
// A NaN gives way to a number, as in fmin().
#define VCCL_CUDA_MIN_MAX(R, A, B, low, high) \
  inline R min(A a, B b) {                    \
    return low(a, b);                         \
  }                                           \
  inline R max(A a, B b) {                    \
    return high(a, b);                        \
  }
VCCL_CUDA_MIN_MAX(float, float, float, ::fminf, ::fmaxf)
VCCL_CUDA_MIN_MAX(double, double, double, ::fmin, ::fmax)
VCCL_CUDA_MIN_MAX(double, float, double, ::fmin, ::fmax)
VCCL_CUDA_MIN_MAX(double, double, float, ::fmin, ::fmax)
#undef VCCL_CUDA_MIN_MAX

inline float rsqrtf(float x) {
  return 1.0f / ::sqrtf(x);
}
inline double rsqrt(double x) {
  return 1.0 / ::sqrt(x);
}
inline float rsqrt(float x) {
  return rsqrtf(x);
}
inline float normcdff(float x) {
  return 0.5f * ::erfcf(-x * 0.70710678f);
}
inline double normcdf(double x) {
  return 0.5 * ::erfc(-x * 0.70710678118654752);
}
inline float sinpif(float x) {
  return static_cast<float>(::sin(CUDART_PI * std::fmod(static_cast<double>(x), 2.0)));
}
inline float cospif(float x) {
  return static_cast<float>(::cos(CUDART_PI * std::fmod(static_cast<double>(x), 2.0)));
}
inline float rcbrtf(float x) {
  return 1.0f / ::cbrtf(x);
}

#define VCCL_CUDA_SAME(name, R, parameters, value) \
  inline R name parameters {                       \
    return value;                                  \
  }
VCCL_CUDA_SAME(__expf, float, (float x), ::expf(x))
VCCL_CUDA_SAME(__exp10f, float, (float x), ::powf(10.0f, x))
VCCL_CUDA_SAME(__logf, float, (float x), ::logf(x))
VCCL_CUDA_SAME(__log2f, float, (float x), ::log2f(x))
VCCL_CUDA_SAME(__log10f, float, (float x), ::log10f(x))
VCCL_CUDA_SAME(__powf, float, (float x, float y), ::powf(x, y))
VCCL_CUDA_SAME(__sinf, float, (float x), ::sinf(x))
VCCL_CUDA_SAME(__cosf, float, (float x), ::cosf(x))
VCCL_CUDA_SAME(__tanf, float, (float x), ::tanf(x))
VCCL_CUDA_SAME(__fdividef, float, (float x, float y), x / y)
VCCL_CUDA_SAME(__frcp_rn, float, (float x), 1.0f / x)
VCCL_CUDA_SAME(__frsqrt_rn, float, (float x), rsqrtf(x))
VCCL_CUDA_SAME(__fsqrt_rn, float, (float x), ::sqrtf(x))
VCCL_CUDA_SAME(__fadd_rn, float, (float x, float y), x + y)
VCCL_CUDA_SAME(__fsub_rn, float, (float x, float y), x - y)
VCCL_CUDA_SAME(__fmul_rn, float, (float x, float y), x * y)
VCCL_CUDA_SAME(__fdiv_rn, float, (float x, float y), x / y)
VCCL_CUDA_SAME(__fmaf_rn, float, (float x, float y, float z), ::fmaf(x, y, z))
VCCL_CUDA_SAME(__dadd_rn, double, (double x, double y), x + y)
VCCL_CUDA_SAME(__dmul_rn, double, (double x, double y), x * y)
VCCL_CUDA_SAME(__ddiv_rn, double, (double x, double y), x / y)
VCCL_CUDA_SAME(__fma_rn, double, (double x, double y, double z), ::fma(x, y, z))
VCCL_CUDA_SAME(__saturatef, float, (float x), x >= 1.0f ? 1.0f : x > 0.0f ? x : 0.0f)
VCCL_CUDA_SAME(__float2int_rn, int, (float x), static_cast<int>(::rintf(x)))
VCCL_CUDA_SAME(__float2int_rz, int, (float x), static_cast<int>(x))
VCCL_CUDA_SAME(__float2int_rd, int, (float x), static_cast<int>(::floorf(x)))
VCCL_CUDA_SAME(__float2int_ru, int, (float x), static_cast<int>(::ceilf(x)))
VCCL_CUDA_SAME(__float2uint_rn, unsigned, (float x), static_cast<unsigned>(::rintf(x)))
VCCL_CUDA_SAME(__int2float_rn, float, (int x), static_cast<float>(x))
VCCL_CUDA_SAME(__uint2float_rn, float, (unsigned x), static_cast<float>(x))
VCCL_CUDA_SAME(__double2float_rn, float, (double x), static_cast<float>(x))
VCCL_CUDA_SAME(__double2int_rn, int, (double x), static_cast<int>(::rint(x)))
VCCL_CUDA_SAME(__popc, int, (unsigned x), __builtin_popcount(x))
VCCL_CUDA_SAME(__popcll, int, (unsigned long long x), __builtin_popcountll(x))
VCCL_CUDA_SAME(__clz, int, (int x), x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)))
VCCL_CUDA_SAME(__clzll, int, (long long x), x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)))
VCCL_CUDA_SAME(__ffs, int, (int x), __builtin_ffs(x))
VCCL_CUDA_SAME(__ffsll, int, (long long x), __builtin_ffsll(x))
VCCL_CUDA_SAME(__mul24, int, (int x, int y), ((x << 8) >> 8) * ((y << 8) >> 8))
VCCL_CUDA_SAME(__mulhi, int, (int x, int y), static_cast<int>((static_cast<long long>(x) * y) >> 32))
VCCL_CUDA_SAME(__umulhi, unsigned, (unsigned x, unsigned y),
               static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 32))
VCCL_CUDA_SAME(__umul64hi, unsigned long long, (unsigned long long x, unsigned long long y),
               static_cast<unsigned long long>((static_cast<unsigned __int128>(x) * y) >> 64))
VCCL_CUDA_SAME(__sad, unsigned, (int x, int y, unsigned z), (x < y ? unsigned(y) - unsigned(x) : unsigned(x) - unsigned(y)) + z)
#undef VCCL_CUDA_SAME

inline void __sincosf(float x, float* sine, float* cosine) {
  *sine = ::sinf(x);
  *cosine = ::cosf(x);
}
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  shift &= 31;
  return shift == 0 ? high : high << shift | low >> (32 - shift);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  shift &= 31;
  return shift == 0 ? low : low >> shift | high << (32 - shift);
}

namespace vccl_cuda VCCL_CUDA_HIDDEN {
template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "only values of one size have the same bits");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace vccl_cuda

inline int __float_as_int(float x) {
  return ::vccl_cuda::bits_as<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return ::vccl_cuda::bits_as<unsigned>(x);
}
inline float __int_as_float(int x) {
  return ::vccl_cuda::bits_as<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return ::vccl_cuda::bits_as<float>(x);
}
inline long long __double_as_longlong(double x) {
  return ::vccl_cuda::bits_as<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return ::vccl_cuda::bits_as<double>(x);
}

// Loads and stores that say how a GPU is to cache.
#define VCCL_CUDA_LOAD(name)       \
  template <class T>               \
  inline T name(const T* address) { \
    return *address;               \
  }
VCCL_CUDA_LOAD(__ldg)
VCCL_CUDA_LOAD(__ldca)
VCCL_CUDA_LOAD(__ldcg)
VCCL_CUDA_LOAD(__ldcs)
#undef VCCL_CUDA_LOAD
template <class T>
inline void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
inline void __stcg(T* address, T value) {
  *address = value;
}

// A clock of a GPU counts cycles; this one counts nanoseconds.
inline long long clock64() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<long long>(now.tv_sec) * 1000000000 + now.tv_nsec;
}
