// torch's event by CUDA's name. It is made when it is recorded for the first time, as there.
#pragma once

#include <c10/cuda/CUDAGuard.h>

#include <optional>
#include <utility>

namespace c10::cuda {

struct CUDAEvent {
  explicit CUDAEvent(unsigned flags = cudaEventDisableTiming) noexcept : flags_(flags) {}
  ~CUDAEvent() {
    if (event_) cudaEventDestroy(event_);
  }
  CUDAEvent(const CUDAEvent&) = delete;
  CUDAEvent& operator=(const CUDAEvent&) = delete;
  CUDAEvent(CUDAEvent&& other) noexcept { swap(other); }
  CUDAEvent& operator=(CUDAEvent&& other) noexcept {
    swap(other);
    return *this;
  }

  operator cudaEvent_t() const { return event_; }
  cudaEvent_t event() const { return event_; }
  friend bool operator<(const CUDAEvent& left, const CUDAEvent& right) { return left.event_ < right.event_; }
  bool isCreated() const { return event_ != nullptr; }
  DeviceIndex device_index() const { return card_; }
  std::optional<Device> device() const {
    return event_ ? std::optional(Device(DeviceType::CUDA, card_)) : std::nullopt;
  }

  /// An event that was never recorded counts as reached.
  bool query() const {
    if (!event_) return true;
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    C10_CUDA_CHECK(code);
    return true;
  }
  void record() { record(getCurrentCUDAStream()); }
  void recordOnce(const CUDAStream& stream) {
    if (!recorded_) record(stream);
  }
  void record(const CUDAStream& stream) {
    if (!event_) {
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags_));
      card_ = stream.device_index();
    }
    TORCH_CHECK(card_ == stream.device_index(), "Event device ", static_cast<int>(card_),
                " does not match recording stream's device ", static_cast<int>(stream.device_index()), ".");
    const CUDAGuard guard(card_);
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
    recorded_ = true;
  }
  void block(const CUDAStream& stream) {
    if (!event_) return;
    const CUDAGuard guard(stream.device_index());
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_));
  }
  void synchronize() const {
    if (event_) C10_CUDA_CHECK(cudaEventSynchronize(event_));
  }
  /// Returns milliseconds.
  float elapsed_time(const CUDAEvent& end) const {
    TORCH_CHECK_VALUE(!((flags_ | end.flags_) & cudaEventDisableTiming),
                      "Both events must be created with argument 'enable_timing=True'.");
    TORCH_CHECK_VALUE(event_ && end.event_, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(query() && end.query(), "Both events must be completed before calculating elapsed time.");
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_, end.event_));
    return milliseconds;
  }

 private:
  void swap(CUDAEvent& other) noexcept {
    std::swap(flags_, other.flags_);
    std::swap(recorded_, other.recorded_);
    std::swap(card_, other.card_);
    std::swap(event_, other.event_);
  }

  unsigned flags_ = cudaEventDisableTiming;
  bool recorded_ = false;
  DeviceIndex card_ = -1;
  cudaEvent_t event_ = nullptr;
};

}  // namespace c10::cuda

namespace at::cuda {
using c10::cuda::CUDAEvent;
}  // namespace at::cuda
