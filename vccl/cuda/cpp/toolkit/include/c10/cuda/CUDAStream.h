// torch's streams by CUDA's names.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstddef>
#include <functional>
#include <ostream>

namespace c10::cuda {

inline c10::impl::VirtualGuardImpl cards() {
  return c10::impl::VirtualGuardImpl(DeviceType::CUDA);
}

class CUDAStream {
 public:
  enum Unchecked { UNCHECKED };
  explicit CUDAStream(Stream stream) : stream_(stream) {
    TORCH_CHECK(stream.device_type() == DeviceType::CUDA, "a stream of CUDA is needed, not of ", stream.device());
  }
  explicit CUDAStream(Unchecked, Stream stream) : stream_(stream) {}

  bool operator==(const CUDAStream& other) const noexcept { return unwrap() == other.unwrap(); }
  bool operator!=(const CUDAStream& other) const noexcept { return unwrap() != other.unwrap(); }
  operator cudaStream_t() const { return stream(); }
  operator Stream() const { return unwrap(); }
  DeviceType device_type() const { return DeviceType::CUDA; }
  DeviceIndex device_index() const { return stream_.device_index(); }
  Device device() const { return stream_.device(); }
  StreamId id() const { return stream_.id(); }
  bool query() const { return stream_.query(); }
  void synchronize() const { stream_.synchronize(); }
  struct c10::StreamData3 pack3() const { return stream_.pack3(); }
  static CUDAStream unpack3(StreamId id, DeviceIndex index, DeviceType type) {
    return CUDAStream(Stream::unpack3(id, index, type));
  }
  Stream unwrap() const { return stream_; }
  cudaStream_t stream() const {
    return static_cast<cudaStream_t>(::vdev::cuda::stream_pointer(device_index(), id()));
  }

 private:
  Stream stream_;
};

inline Device card_at(DeviceIndex index) {
  return Device(DeviceType::CUDA, index < 0 ? current_device() : index);
}
inline CUDAStream getCurrentCUDAStream(DeviceIndex index = -1) {
  return CUDAStream(cards().getStream(card_at(index)));
}
inline CUDAStream getDefaultCUDAStream(DeviceIndex index = -1) {
  return CUDAStream(cards().getDefaultStream(card_at(index)));
}
inline CUDAStream getStreamFromPool(bool is_high_priority = false, DeviceIndex index = -1) {
  return CUDAStream(cards().getStreamFromGlobalPool(card_at(index), is_high_priority));
}
/// A lower number is a higher priority. Cards have 0 and -1.
inline CUDAStream getStreamFromPool(int priority, DeviceIndex index = -1) {
  return getStreamFromPool(priority < 0, index);
}
inline void setCurrentCUDAStream(CUDAStream stream) {
  cards().exchangeStream(stream);
}

inline std::ostream& operator<<(std::ostream& out, const CUDAStream& stream) {
  return out << stream.unwrap();
}

}  // namespace c10::cuda

template <>
struct std::hash<c10::cuda::CUDAStream> {
  std::size_t operator()(const c10::cuda::CUDAStream& stream) const noexcept {
    return std::hash<c10::Stream>{}(stream.unwrap());
  }
};

namespace at::cuda {
using c10::cuda::CUDAStream;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::getDefaultCUDAStream;
using c10::cuda::getStreamFromPool;
using c10::cuda::setCurrentCUDAStream;
}  // namespace at::cuda
