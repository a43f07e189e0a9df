// Kernels of operators that others write: vdev::launch_kernel() of csrc_device/torch/device.hpp.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/device.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/operators/activity_labels.hpp"
#include "csrc_device/torch/operators/kernel_scope.hpp"
#include "csrc_device/torch/operators/launch.hpp"
#include "csrc_device/torch/operators/spoiled_tensors.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

// The memory of a tensor, from its first element to its last. A task keeps this in place of the tensor.
struct Extent {
  explicit Extent(const at::Tensor& tensor) : begin(tensor.const_data_ptr()), bytes(0) {
    if (tensor.numel() == 0) return;
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    bytes = static_cast<std::size_t>((last + 1) * tensor.element_size());
  }
  const void* begin;
  std::size_t bytes;
};

std::vector<Extent> extents_of(at::TensorList tensors) {
  std::vector<Extent> extents;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) extents.emplace_back(tensor);
  }
  return extents;
}

// Returns the card that all tensors are on.
int card_of(const std::string& name, at::TensorList reads, at::TensorList writes) {
  int card = -1;
  for (const at::TensorList tensors : {reads, writes}) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      TORCH_CHECK(is_card(tensor.device()) && tensor.layout() == at::kStrided, name,
                  " runs on a card, and got a tensor of ", tensor.layout(), " layout on ", tensor.device());
      const int own = tensor.device().index();
      TORCH_CHECK(card < 0 || card == own, name, " got tensors on ", device_of(card), " and on ",
                  device_of(own), ". Move them to one card.");
      card = own;
    }
  }
  TORCH_CHECK(card >= 0, name, " got no tensor, so there is no card to run on.");
  return card;
}

class KernelTask {
 public:
  KernelTask(std::string name, int card, at::TensorList reads, at::TensorList writes,
             std::function<void()> kernel)
      : name_(std::move(name)),
        card_(card),
        reads_(extents_of(reads)),
        writes_(extents_of(writes)),
        kernel_(std::move(kernel)) {}

  void operator()() const {
    const TaskKernelScope scope(state_);
    KernelMemory memory(card_, Queue::running());
    UseKernelMemory use(memory);
    if (SpoiledMemory::any() && spoil_writes()) return;
    try {
      kernel_();
    } catch (c10::Error& error) {
      error.add_context(
          c10::str("raised by ", name_, " on ", device_of(card_), ", which ran after its call had returned"));
      throw;
    }
    if (!SpoiledMemory::any()) return;
    for (const Extent& extent : writes_) spoiled_memory().renew(extent.begin, extent.bytes);
  }

 private:
  // Hands a failure that spoils what the kernel would read on to what it would have written.
  bool spoil_writes() const {
    for (const Extent& read : reads_) {
      const auto failure = spoiled_memory().find(read.begin, read.bytes);
      if (!failure) continue;
      for (const Extent& write : writes_) spoiled_memory().spoil(write.begin, write.bytes, failure);
      report_failure(failure);
      return true;
    }
    return false;
  }

  const std::string name_;
  const int card_;
  const std::vector<Extent> reads_, writes_;
  const std::function<void()> kernel_;
  const LaunchState state_;
};

}  // namespace

void launch_kernel(std::string name, at::TensorList reads, at::TensorList writes,
                   std::function<void()> kernel) {
  const int card = card_of(name, reads, writes);
  const ActivityScope activity([&] { return ActivityLabel{ActivityKind::kOperator, name}; });
  if (when_to_launch(card) != When::now) {
    return launch_later(card, KernelTask(std::move(name), card, reads, writes, std::move(kernel)));
  }
  launch_and_wait(card, {}, {}, [&] {
    if (SpoiledMemory::any()) {
      for (const at::Tensor& tensor : reads) check_readable(tensor);
    }
    kernel();
    if (SpoiledMemory::any()) {
      for (const at::Tensor& tensor : writes) renew(tensor);
    }
  });
}

}  // namespace vdev
