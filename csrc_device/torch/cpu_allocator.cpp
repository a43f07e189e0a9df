#include "csrc_device/torch/cpu_allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/host_sharing.hpp"
#include "csrc_device/torch/allocator.hpp"

namespace vdev {
namespace {

// initial-exec: one instruction to read, on a path that every CPU allocation of the process takes.
__attribute__((tls_model("initial-exec"))) thread_local int allocating_card = -1;

// The deleter of every DataPtr of shared memory; context and data are the same pointer.
void delete_shared(void* block) {
  c10::profiledCPUMemoryReporter().Delete(block);
  host_memory_of(block)->free(static_cast<std::byte*>(block));
}

// torch's CPU allocator with two questions before it. Everything but allocate() must work for memory of any
// origin, since all is handed out under this object's name.
class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* plain) : plain_(plain) { plain_deleter = plain->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (allocating_card < 0) [[likely]] {
      return is_shared_size(bytes) ? allocate_shared(bytes) : plain_->allocate(bytes);
    }
    c10::DataPtr data = allocate_on(allocating_card, bytes);
    data.unsafe_set_device(c10::Device(c10::DeviceType::CPU));
    return data;
  }

  // oneDNN takes its scratch memory with raw_allocate() and gives it back at any later time, from any thread.
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return data.get() == data.get_context() &&
           (plain_->is_simple_data_ptr(data) || card_of(data.get()) >= 0 || host_memory_of(data.get()));
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    plain_->copy_data(to, from, bytes);
  }

 private:
  // What has no room there, and every allocation of a forked child, is torch's as without sharing.
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
  // Leaked: storages name it until the process ends.
  static c10::Allocator* const installed = [] {
    auto* allocator = new CpuAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(allocator, /*priority=*/100);
    return allocator;
  }();
  return installed;
}

AllocateOnCard::AllocateOnCard(int card) : previous_(allocating_card) {
  cpu_allocator();
  allocating_card = card;
}

AllocateOnCard::~AllocateOnCard() {
  allocating_card = previous_;
}

}  // namespace vdev
