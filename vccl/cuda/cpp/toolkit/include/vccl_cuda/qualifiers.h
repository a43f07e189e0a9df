// CUDA's words in declarations. A card's code is the host's, so most of them say nothing here.
#pragma once

#define __host__
#define __device__
#define __global__
#define __managed__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
// libstdc++ writes __attribute__((__noinline__)), which stays valid with an empty word.
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#ifdef __CUDACC__
// The threads of a block take turns on one thread of the host, so what that thread has is the block's. The
// source rewriter makes `extern __shared__` arrays pointers to the launch's dynamic memory.
#define __shared__ static thread_local
#endif
// Kernels that were launched keep no state in the extension, and each extension has its own copy of the
// functions: one that was compiled with an older vccl keeps working beside a new one.
#define VCCL_CUDA_HIDDEN __attribute__((visibility("hidden")))
