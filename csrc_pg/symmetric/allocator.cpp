// The allocators of symmetric memory that torch.distributed._symmetric_memory finds for the cards.
#include <memory>
#include <string>
#include <utility>

#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/symmetric/allocations.hpp"

namespace vccl::symmetric {
namespace {

namespace torch_symmetric = c10d::symmetric_memory;

/// Hands out symmetric memory under one of the names that torch has for its backends. All names mean the same
/// memory: what the ranks of a host can reach is the same for each of them.
class Allocator final : public torch_symmetric::SymmetricMemoryAllocator {
 public:
  explicit Allocator(std::string name) : name_(std::move(name)) {}

  void* alloc(std::size_t size, int device_idx, const std::optional<std::string>& group_name) override {
    return allocations().alloc(device_idx < 0 ? vdev::current_card() : device_idx, size, group_name);
  }
  void free(void* ptr) override { allocations().free(ptr); }
  std::size_t get_alloc_size(void* ptr) override { return allocations().size_of(ptr); }
  c10::intrusive_ptr<torch_symmetric::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>& group_name) override {
    return allocations().rendezvous(ptr, group_name);
  }
  bool has_multicast_support(int) override {
    return !c10::utils::check_env("TORCH_SYMM_MEM_DISABLE_MULTICAST").value_or(false);
  }
  c10::DeviceType supported_device_type() override { return vdev::device_type(); }
  std::string name() override { return name_; }
  bool has_allocation(void* ptr) override { return allocations().has(ptr); }

 private:
  const std::string name_;
};

const vdev::Registration registered([] {
  // In pose the default is torch's for CUDA.
  const bool poses = vdev::pose() == vdev::Pose::cuda;
  for (const char* name : {"VCCL", "CUDA", "NCCL", "NVSHMEM"}) {
    auto allocator = c10::make_intrusive<Allocator>(name);
    torch_symmetric::register_availability(name, allocator);
    if (std::string(name) == (poses ? "CUDA" : "VCCL"))
      torch_symmetric::register_allocator(vdev::device_type(), allocator);
  }
  torch_symmetric::register_mempool_allocator(
      vdev::device_type(), {std::shared_ptr<void>(), static_cast<c10::Allocator*>(vdev::device_allocator())});
});

}  // namespace
}  // namespace vccl::symmetric
