// Cards by their numbers.
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>

namespace c10::cuda {

inline DeviceIndex device_count() noexcept {
  return static_cast<DeviceIndex>(::vdev::cuda::card_count());
}
inline DeviceIndex device_count_ensure_non_zero() {
  TORCH_CHECK(device_count() > 0, "No CUDA GPUs are available");
  return device_count();
}
inline DeviceIndex current_device() {
  return static_cast<DeviceIndex>(::vdev::cuda::current_card());
}
inline void set_device(DeviceIndex index, bool = false) {
  C10_CUDA_CHECK(cudaSetDevice(index));
}
inline void device_synchronize() {
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}
inline DeviceIndex ExchangeDevice(DeviceIndex index) {
  const DeviceIndex before = current_device();
  if (index >= 0) set_device(index);
  return before;
}
inline DeviceIndex MaybeExchangeDevice(DeviceIndex index) {
  return ExchangeDevice(index);
}
inline cudaError_t GetDeviceCount(int* count) {
  return cudaGetDeviceCount(count);
}
inline cudaError_t GetDevice(DeviceIndex* index) {
  *index = current_device();
  return cudaSuccess;
}

}  // namespace c10::cuda
