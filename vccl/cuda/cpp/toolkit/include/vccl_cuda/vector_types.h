// float4, dim3 and the other small vectors, with the sizes and alignments that they have on GPUs.
#pragma once

#include "vccl_cuda/qualifiers.h"

#define VCCL_CUDA_VECTORS(T, name, align2, align4)                                                 \
  struct name##1 {                                                                                 \
    T x;                                                                                           \
  };                                                                                               \
  struct __align__(align2) name##2 {                                                               \
    T x, y;                                                                                        \
  };                                                                                               \
  struct name##3 {                                                                                 \
    T x, y, z;                                                                                     \
  };                                                                                               \
  struct __align__(align4) name##4 {                                                               \
    T x, y, z, w;                                                                                  \
  };                                                                                               \
  static inline name##1 make_##name##1(T x) {                                                      \
    return {x};                                                                                    \
  }                                                                                                \
  static inline name##2 make_##name##2(T x, T y) {                                                 \
    return {x, y};                                                                                 \
  }                                                                                                \
  static inline name##3 make_##name##3(T x, T y, T z) {                                            \
    return {x, y, z};                                                                              \
  }                                                                                                \
  static inline name##4 make_##name##4(T x, T y, T z, T w) {                                       \
    return {x, y, z, w};                                                                           \
  }

VCCL_CUDA_VECTORS(signed char, char, 2, 4)
VCCL_CUDA_VECTORS(unsigned char, uchar, 2, 4)
VCCL_CUDA_VECTORS(short, short, 4, 8)
VCCL_CUDA_VECTORS(unsigned short, ushort, 4, 8)
VCCL_CUDA_VECTORS(int, int, 8, 16)
VCCL_CUDA_VECTORS(unsigned int, uint, 8, 16)
VCCL_CUDA_VECTORS(long, long, 16, 16)
VCCL_CUDA_VECTORS(unsigned long, ulong, 16, 16)
VCCL_CUDA_VECTORS(long long, longlong, 16, 16)
VCCL_CUDA_VECTORS(unsigned long long, ulonglong, 16, 16)
VCCL_CUDA_VECTORS(float, float, 8, 16)
VCCL_CUDA_VECTORS(double, double, 16, 16)
#undef VCCL_CUDA_VECTORS

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
