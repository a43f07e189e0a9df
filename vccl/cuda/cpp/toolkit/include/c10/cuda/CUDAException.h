// Codes of the CUDA runtime as exceptions of torch.
#pragma once

#include <c10/cuda/CUDAMacros.h>
#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#include <string>

namespace c10 {
class C10_CUDA_API CUDAError : public c10::Error {
  using Error::Error;
};
}  // namespace c10

namespace c10::cuda {
inline void c10_cuda_check_implementation(int code, const char* file, const char* function, int line, bool) {
  if (code == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(code);
  std::string text = std::string("CUDA error: ") + cudaGetErrorString(error);
  const auto& last = ::vccl_cuda::last_error();
  if (last.code == error && !last.text.empty()) text = last.text;
  cudaGetLastError();
  throw c10::CUDAError(c10::SourceLocation{function, file, static_cast<uint32_t>(line)}, text);
}
}  // namespace c10::cuda

#define C10_CUDA_CHECK(EXPR)                                                                          \
  do {                                                                                                \
    const cudaError_t vccl_error = EXPR;                                                              \
    ::c10::cuda::c10_cuda_check_implementation(vccl_error, __FILE__, __func__, __LINE__, true);       \
  } while (0)
#define C10_CUDA_CHECK_WARN(EXPR)                                                                     \
  do {                                                                                                \
    const cudaError_t vccl_error = EXPR;                                                              \
    if (vccl_error != cudaSuccess) {                                                                  \
      cudaGetLastError();                                                                             \
      TORCH_WARN("CUDA warning: ", cudaGetErrorString(vccl_error));                                   \
    }                                                                                                 \
  } while (0)
#define C10_CUDA_ERROR_HANDLED(EXPR) EXPR
#define C10_CUDA_IGNORE_ERROR(EXPR) \
  do {                              \
    (void)(EXPR);                   \
    cudaGetLastError();             \
  } while (0)
#define C10_CUDA_CLEAR_ERROR() (void)cudaGetLastError()
// As in torch, a launch is checked when it has been queued. What the kernel does wrong later is the stream's.
#define C10_CUDA_KERNEL_LAUNCH_CHECK()                                                                        \
  ::c10::cuda::c10_cuda_check_implementation(cudaPeekAtLastError(), __FILE__, __func__, __LINE__, true)
#define TORCH_DSA_KERNEL_LAUNCH(kernel, blocks, threads, shared, stream, ...) \
  kernel<<<blocks, threads, shared, stream>>>(__VA_ARGS__)
