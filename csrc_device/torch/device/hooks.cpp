// Answers torch's questions to an accelerator that is not built in: whether it is there, which card is
// current, and which card a pointer belongs to.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <new>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/process_sharing.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/device/generator.hpp"
#include "csrc_device/torch/device/hooks.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/memory/allocator_settings.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

// Answers what torch asks every kind of accelerator. `Interface` is torch's for one device type.
template <class Interface>
class Hooks : public Interface {
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
    TORCH_CHECK(card >= 0, "The pointer ", data, " does not lie in the memory of any card of this process.");
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
};

class VdevHooks final : public Hooks<at::PrivateUse1HooksInterface> {
 public:
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

constexpr const char* kConfig = "  - CUDA: virtual cards of vccl (VDEV_POSE=cuda)\n";

// cuDNN, MAGMA and the other libraries of CUDA are not there, and torch then chooses its own kernels.
class CudaHooks final : public Hooks<at::CUDAHooksInterface> {
 public:
  bool hasCUDA() const override { return card_count() > 0; }
  bool hasCUDART() const override { return card_count() > 0; }
  c10::DeviceIndex current_device() const override { return static_cast<c10::DeviceIndex>(current_card()); }
  c10::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  int getNumGPUs() const override { return card_count(); }
  /// Returns the line about CUDA of torch.__config__.show().
  std::string showConfig() const override { return kConfig; }
  void deviceSynchronize(c10::DeviceIndex index) const override {
    with_torch_errors([&] { synchronize_card(index); });
  }
};

// torch makes the object of CUDA's hooks once, at the first question about CUDA, which `import torch` may
// have asked already. So our object takes the place of torch's. Both consist of nothing but the pointer to
// their virtual functions. Replacing an object under a reference to its base is undefined by the letter of
// C++, so the result is tested.
void replace_cuda_hooks() {
  static_assert(sizeof(CudaHooks) == sizeof(at::CUDAHooksInterface) && sizeof(CudaHooks) == sizeof(void*));
  auto* place = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  TORCH_CHECK(
      !place->hasCUDA(),
      "VDEV_POSE=cuda: this torch was built with CUDA and finds a GPU, so cards cannot take CUDA's place. "
      "Unset VDEV_POSE, or install torch's CPU build.");
  ::new (static_cast<void*>(place)) CudaHooks;
  // The number of cards would be another proof, but the program may still set the variables that decide it.
  TORCH_INTERNAL_ASSERT(at::detail::getCUDAHooks().showConfig() == kConfig);
}

}  // namespace

void register_hooks() {
  check_registrations();
  register_allocator_settings();
  if (pose() == Pose::cuda)
    replace_cuda_hooks();
  else
    // The hooks are leaked, because torch keeps the pointer and may use it until the process ends.
    at::RegisterPrivateUse1HooksInterface(new VdevHooks);
}

bool name_device() {
  if (pose() == Pose::cuda || at::isPrivateUse1HooksRegistered()) return false;
  register_hooks();
  c10::register_privateuse1_backend("vdev");
  return true;
}

}  // namespace vdev
