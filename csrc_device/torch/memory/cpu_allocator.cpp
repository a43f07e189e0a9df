#include "csrc_device/torch/memory/cpu_allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/host_sharing.hpp"
#include "csrc_device/torch/allocator.hpp"

namespace vdev {
namespace {

constinit thread_local KernelMemory* kernel_memory = nullptr;

// Frees a block; it is the deleter of every DataPtr of shared memory. Context and data are the same pointer.
void delete_shared(void* block) {
  c10::profiledCPUMemoryReporter().Delete(block);
  host_memory_of(block)->free(static_cast<std::byte*>(block));
}

// Allocates card memory or shared memory where that is wanted, and otherwise calls torch's CPU allocator.
// Every member but allocate() must work for memory of any origin, because all of it is handed out under this
// object's name.
class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* plain) : plain_(plain) { plain_deleter = plain->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (kernel_memory == nullptr) [[likely]] {
      return is_shared_size(bytes) ? allocate_shared(bytes) : plain_->allocate(bytes);
    }
    return kernel_memory->allocate(bytes, *plain_);
  }

  // oneDNN takes scratch memory with raw_allocate() and frees it at any later time, on any thread.
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return data.get() == data.get_context() &&
           (plain_->is_simple_data_ptr(data) || card_of(data.get()) >= 0 || host_memory_of(data.get()));
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    plain_->copy_data(to, from, bytes);
  }

 private:
  // If shared memory has no room, and in a forked child, the memory comes from torch's allocator.
  c10::DataPtr allocate_shared(std::size_t bytes) const {
    auto* memory = host_memory();
    auto* block = memory ? memory->allocate(bytes) : nullptr;
    if (!block) {
      return plain_->allocate(bytes);
    }
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, &delete_shared, c10::Device(c10::DeviceType::CPU)};
  }

  static void free_any(void* pointer) {
    if (card_of(pointer) >= 0) {
      device_allocator()->raw_deallocate(pointer);
    } else if (host_memory_of(pointer)) {
      delete_shared(pointer);
    } else {
      plain_deleter(pointer);
    }
  }

  static inline c10::DeleterFnPtr plain_deleter = nullptr;
  c10::Allocator* plain_;
};

}  // namespace

c10::Allocator* cpu_allocator() {
  // The allocator is leaked, because storages refer to it until the process ends.
  static c10::Allocator* const installed = [] {
    auto* allocator = new CpuAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(allocator, /*priority=*/100);
    return allocator;
  }();
  return installed;
}

UseKernelMemory::UseKernelMemory(KernelMemory& memory) : previous_(kernel_memory) {
  cpu_allocator();
  kernel_memory = &memory;
}

UseKernelMemory::~UseKernelMemory() {
  kernel_memory = previous_;
}

}  // namespace vdev
