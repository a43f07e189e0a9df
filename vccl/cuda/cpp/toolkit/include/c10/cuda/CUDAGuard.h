// torch's guards by CUDA's names.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/InlineDeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>
#include <vector>

namespace c10::cuda {

struct CUDAGuard {
  explicit CUDAGuard(DeviceIndex index) : guard_(card_at(index)) {}
  explicit CUDAGuard(Device device) : guard_(checked(device)) {}
  CUDAGuard(const CUDAGuard&) = delete;
  CUDAGuard& operator=(const CUDAGuard&) = delete;

  void set_device(Device device) { guard_.reset_device(checked(device)); }
  void reset_device(Device device) { guard_.reset_device(checked(device)); }
  void set_index(DeviceIndex index) { guard_.set_index(index); }
  Device original_device() const { return guard_.original_device(); }
  Device current_device() const { return guard_.current_device(); }

 private:
  static Device checked(Device device) {
    TORCH_CHECK(device.is_cuda(), "a device of CUDA is needed, not ", device);
    return device;
  }
  DeviceGuard guard_;
};

struct OptionalCUDAGuard {
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<Device> device) : guard_(device) {}
  explicit OptionalCUDAGuard(std::optional<DeviceIndex> index) {
    if (index) guard_.reset_device(card_at(*index));
  }
  void set_device(Device device) { guard_.reset_device(device); }
  void set_index(DeviceIndex index) { guard_.reset_device(card_at(index)); }
  void reset() { guard_.reset(); }
  std::optional<Device> original_device() const { return guard_.original_device(); }
  std::optional<Device> current_device() const { return guard_.current_device(); }

 private:
  // Unlike OptionalDeviceGuard, this can be reset.
  c10::impl::InlineOptionalDeviceGuard<c10::impl::VirtualGuardImpl> guard_;
};

struct CUDAStreamGuard {
  explicit CUDAStreamGuard(Stream stream) : guard_(stream) {}
  void reset_stream(Stream stream) { guard_.reset_stream(stream); }
  CUDAStream original_stream() const { return CUDAStream(guard_.original_stream()); }
  CUDAStream current_stream() const { return CUDAStream(guard_.current_stream()); }
  Device current_device() const { return guard_.current_device(); }
  Device original_device() const { return guard_.original_device(); }

 private:
  StreamGuard guard_;
};

struct OptionalCUDAStreamGuard {
  OptionalCUDAStreamGuard() = default;
  explicit OptionalCUDAStreamGuard(std::optional<Stream> stream) : guard_(stream) {}
  void reset_stream(Stream stream) { guard_.reset_stream(stream); }
  void reset() { guard_.reset(); }
  std::optional<CUDAStream> original_stream() const { return stream_of(guard_.original_stream()); }
  std::optional<CUDAStream> current_stream() const { return stream_of(guard_.current_stream()); }

 private:
  static std::optional<CUDAStream> stream_of(const std::optional<Stream>& stream) {
    return stream ? std::optional(CUDAStream(*stream)) : std::nullopt;
  }
  OptionalStreamGuard guard_;
};

struct CUDAMultiStreamGuard {
  explicit CUDAMultiStreamGuard(ArrayRef<CUDAStream> streams) : guard_(unwrapped(streams)) {}

 private:
  static std::vector<Stream> unwrapped(ArrayRef<CUDAStream> streams) {
    std::vector<Stream> result;
    for (const CUDAStream& stream : streams) result.push_back(stream.unwrap());
    return result;
  }
  MultiStreamGuard guard_;
};

}  // namespace c10::cuda

namespace at::cuda {
using c10::cuda::CUDAGuard;
using c10::cuda::CUDAMultiStreamGuard;
using c10::cuda::CUDAStreamGuard;
using c10::cuda::OptionalCUDAGuard;
using c10::cuda::OptionalCUDAStreamGuard;
}  // namespace at::cuda
