// torch's device guard for vdev, through which torch uses devices, streams and events.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "base/text.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/checks/gpu_trace.hpp"
#include "csrc_device/torch/checks/sync_debug_mode.hpp"
#include "csrc_device/torch/device/event_state.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

EventState& state_of(void* event) {
  TORCH_INTERNAL_ASSERT(event != nullptr, "an event that was never recorded");
  return *static_cast<EventState*>(event);
}

// The clocks of two GPUs have nothing to do with each other, so CUDA refuses their difference.
[[noreturn]] void raise_two_cards(int from, int to) {
  constexpr std::int32_t kInvalidResourceHandle = 400;  // cudaErrorInvalidResourceHandle
  raise_accelerator_error(
      kInvalidResourceHandle,
      base::text(device_title(), " error: invalid resource handle: elapsed_time() of events of two cards, ",
                 device_name(), ":", from, " and ", device_name(), ":", to,
                 "; record both on streams of one card"));
}

// Returns the next stream of the card's pool.
c10::Stream next_of_pool(int index, int priority) {
  bool made = false;
  const auto stream = card(index).pool_stream(priority, &made);
  if (made) trace_call(TracedCall::stream_creation, *stream);
  return to_torch(*stream);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return device_type(); }

  c10::Device exchangeDevice(c10::Device device) const override {
    return device_of(set_current_card(card_index(device)));
  }
  c10::Device getDevice() const override { return device_of(current_card()); }
  void setDevice(c10::Device device) const override { set_current_card(card_index(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    // Destructors restore the device with this call, so nothing may be thrown. A device that was current is
    // valid.
    if (device.index() >= 0 && device.index() < card_count()) {
      set_current_card(device.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(card_count());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    // The types are those of the CPU kernels. A quantized tensor needs scales, which torch.empty(dtype=) has
    // not, and torch cannot copy integers of one to seven bits on any device.
    c10::DeviceCapability capability;
    auto& types = capability.capability_data.supported_scalar_types;
    types.has_QInt8 = types.has_QUInt8 = types.has_QInt32 = 0;
    types.has_QUInt4x2 = types.has_QUInt2x4 = 0;
    types.has_Int1 = types.has_Int2 = types.has_Int3 = types.has_Int4 = 0;
    types.has_Int5 = types.has_Int6 = types.has_Int7 = 0;
    types.has_UInt1 = types.has_UInt2 = types.has_UInt3 = types.has_UInt4 = 0;
    types.has_UInt5 = types.has_UInt6 = types.has_UInt7 = 0;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    const int card = card_index(device);
    check_card(card);
    return current_torch_stream(card);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device_of(card_index(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return next_of_pool(card_index(device), high_priority ? -1 : 0);
  }
  // A c10::Stream owns nothing, so a new stream could never be destroyed. The stream therefore comes from the
  // pool, as on CUDA.
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return next_of_pool(card_index(device), priority < 0 ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int card = card_index(stream.device());
    return c10::Stream(c10::Stream::UNSAFE, device_of(card), set_current_stream(card, stream.id()));
  }
  // The pointer stays valid: streams of the pool and default streams live as long as their card, which is
  // never destroyed.
  void* getStreamNativeHandle(const c10::Stream stream) const override { return from_torch(stream).get(); }
  bool queryStream(const c10::Stream& stream) const override {
    const auto asked = from_torch(stream);
    const bool idle = with_torch_errors([&] { return asked->query(); });
    if (idle && races::is_on()) [[unlikely]]
      races::host_waits_for(*asked, 0, nullptr);
    return idle;
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    const int card = card_index(stream.device());
    return card_used(card) && from_torch(stream)->queue()->capture() != nullptr;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const auto waited_for = from_torch(stream);
    before_waiting_call(*waited_for);
    const races::WaitClock wait;
    with_torch_errors([&] { waited_for->synchronize(); });
    if (races::is_on()) [[unlikely]]
      races::host_waits_for(*waited_for, wait.nanoseconds(), "Stream.synchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    with_torch_errors([&] { synchronize_card(device); });
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) trace_call(TracedCall::event_deletion, event);
    delete static_cast<EventState*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ",
                static_cast<int>(device), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    const auto recorded = from_torch(stream);
    if (*event == nullptr) {
      *event = new EventState;
      trace_call(TracedCall::event_creation, *event);
    }
    state_of(*event).record(*recorded);
    if (traces_calls()) [[unlikely]]
      report_traced_call(TracedCall::event_record, traced_name(*event), traced_name(*recorded));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      const auto waiter = from_torch(stream);
      waiter->wait(state_of(event).get());
      if (races::is_on()) [[unlikely]]
        races::wait(*waiter, state_of(event).clock());
      if (traces_calls()) [[unlikely]]
        report_traced_call(TracedCall::event_wait, traced_name(event), traced_name(*waiter));
    }
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) {
      return true;
    }
    refuse_during_capture("a query of an event");
    const bool reached = with_torch_errors([&] { return state_of(event).query(); });
    if (reached && races::is_on()) [[unlikely]]
      races::host_waits_for(state_of(event).clock(), 0, nullptr);
    return reached;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      refuse_during_capture("the host waits for an event");
      trace_call(TracedCall::event_synchronization, event);
      const races::Point clock = state_of(event).clock();
      const races::WaitClock wait;
      with_torch_errors([&] { state_of(event).get().synchronize(); });
      if (races::is_on()) [[unlikely]]
        races::host_waits_for(clock, wait.nanoseconds(), "Event.synchronize");
    }
  }
  // Returns milliseconds. torch has checked that both events were made with timing and are reached.
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const int from_card = state_of(start).card(), to_card = state_of(end).card();
    if (from_card != to_card) raise_two_cards(from_card, to_card);
    return with_torch_errors([&] {
      const Event from = state_of(start).get(), to = state_of(end).get();
      for (const Event* event : {&from, &to}) event->query();  // raises what has failed before it
      return static_cast<double>(to.time_ns() - from.time_ns()) * 1e-6;
    });
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }
};

const Registration guard_registration([] {
  TORCH_CHECK(!c10::impl::hasDeviceGuardImpl(device_type()), "torch's device ", device_type(),
              " has a guard, because another library has registered that device.");
  // The guard is leaked, because torch may use it until the process ends.
  c10::impl::registerDeviceGuard(device_type(), new Guard);
});

}  // namespace
}  // namespace vdev
