// CUDA C++ on virtual cards: docs/inside/cuda_extensions.md. What is for kernels alone is there in .cu files.
#pragma once

#include "cuda_runtime_api.h"

#ifdef __CUDACC__
#include "vccl_cuda/atomics.h"
#include "vccl_cuda/launch.h"
#include "vccl_cuda/math.h"
#include "vccl_cuda/sync.h"

namespace vccl_cuda {
inline void allow_shared(std::size_t bytes) {
  std::size_t before = most_shared;
  while (before < bytes && !most_shared.compare_exchange_weak(before, bytes)) {
  }
}
}  // namespace vccl_cuda
#endif
