// Cards by their numbers.
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>

#include <cstdint>
#include <optional>

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
inline cudaError_t SetDevice(DeviceIndex index, bool = false) {
  return cudaSetDevice(index);
}
// A card is there from the beginning, so torch's difference between these two and the others does not exist.
inline cudaError_t MaybeSetDevice(DeviceIndex index) {
  return SetDevice(index);
}
inline void SetTargetDevice() {}
inline bool hasPrimaryContext(DeviceIndex index) {
  return index >= 0 && index < device_count();
}
inline std::optional<DeviceIndex> getDeviceIndexWithPrimaryContext() {
  return device_count() > 0 ? std::optional(current_device()) : std::nullopt;
}

inline void stream_synchronize(cudaStream_t stream) {
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
}
inline void memcpy_and_sync(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream));
  stream_synchronize(stream);
}

}  // namespace c10::cuda
