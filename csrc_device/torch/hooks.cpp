// Answers torch's questions to an accelerator that is not built in: whether it is there, which card is
// current, and which card a pointer belongs to.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/process_sharing.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/generator.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return card_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return card_used(index); }
  // Does nothing, because each card is made at its own first use.
  void init() const override {}

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(card_count()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_card(index); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_card()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    // A negative index leaves the device as it is; torch.accelerator.device_index(None) passes one.
    return static_cast<c10::DeviceIndex>(index < 0 ? current_card() : set_current_card(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const int card = card_showing(data);
    TORCH_CHECK(card >= 0, "The pointer ", data,
                " does not lie in the memory of any vdev card of this process.");
    return device_of(card);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current_card() : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    const int card = index < 0 ? current_card() : index;
    check_card(card);
    return at::make_generator<GeneratorImpl>(card);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

// The hooks are leaked, because torch keeps the pointer and may use it until the process ends.
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace vdev
