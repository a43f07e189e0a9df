// Where a kernel is: threadIdx, blockIdx, blockDim and gridDim.
#pragma once

#include <cstddef>

#include "vccl_cuda/vector_types.h"

namespace vccl_cuda VCCL_CUDA_HIDDEN {

class Worker;

// What the kernel that this thread of the host runs sees of itself. The worker changes `thread` whenever
// another thread of the block goes on.
struct Here {
  uint3 thread{}, block{};
  dim3 block_size, grid_size;
  void* shared = nullptr;    // the dynamic shared memory of the block
  Worker* worker = nullptr;  // null outside of kernels
  unsigned spins = 0;        // how often in a row an atomic function has not changed a lock
};
inline thread_local Here here;

// A line of the program, for errors.
struct Site {
  const char* file = "";
  int line = 0;
};

inline void* dynamic_shared() {
  return here.shared;
}

}  // namespace vccl_cuda

// Names that a program may not use for anything else, so they can be macros, and cost no function.
#define threadIdx (::vccl_cuda::here.thread)
#define blockIdx (::vccl_cuda::here.block)
#define blockDim (::vccl_cuda::here.block_size)
#define gridDim (::vccl_cuda::here.grid_size)
static constexpr int warpSize = 32;

#define VCCL_CUDA_SITE ::vccl_cuda::Site vccl_site = {__builtin_FILE(), __builtin_LINE()}
