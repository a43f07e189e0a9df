// What torch offers to kernels on CUDA, without the handles of CUDA's libraries, which cards do not have.
#pragma once

#include <ATen/Context.h>
#include <ATen/cuda/Exceptions.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

namespace at::cuda {

inline int64_t getNumGPUs() {
  return c10::cuda::device_count();
}
inline bool is_available() {
  return c10::cuda::device_count() > 0;
}
inline int warp_size() {
  return 32;
}
inline cudaDeviceProp* getDeviceProperties(c10::DeviceIndex index) {
  static thread_local cudaDeviceProp properties;
  AT_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return &properties;
}
inline cudaDeviceProp* getCurrentDeviceProperties() {
  return getDeviceProperties(c10::cuda::current_device());
}
inline c10::Allocator* getCUDADeviceAllocator() {
  return c10::GetAllocator(c10::DeviceType::CUDA);
}

}  // namespace at::cuda
