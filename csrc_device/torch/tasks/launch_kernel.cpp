// Kernels that others write: vdev::launch_kernel() of include/vccl/device.hpp, and those of unknown memory.
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/checks/poisoned_cards.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/kernels/spoiled_tensors.hpp"
#include "csrc_device/torch/kernels/touched.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/tasks/activity_labels.hpp"
#include "csrc_device/torch/tasks/decision.hpp"
#include "csrc_device/torch/tasks/launch.hpp"
#include "csrc_device/torch/tasks/launch_kernel.hpp"
#include "include/vccl/device.hpp"

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

// Calls the kernel. What it throws gets the kernel's name, and is a std::exception afterwards: torch's
// bindings know no other. `when` is the rest of the sentence.
void call_kernel(const std::function<void()>& kernel, const std::string& name, int card, const char* when) {
  const auto origin = [&] { return c10::str("raised by ", name, " on ", device_of(card), when); };
  try {
    kernel();
  } catch (c10::Error& error) {
    error.add_context(origin());
    throw;
  } catch (const OutOfMemory&) {
    throw;  // has a type of its own in Python
  } catch (const std::exception& error) {
    throw CardError(c10::str(error.what(), " (", origin(), ")"));
  } catch (...) {
    throw CardError(c10::str("an exception that is no std::exception (", origin(), ")"));
  }
}

// With VDEV_STRICT=1, an error of a task is final for its card.
void call_in_task(const std::function<void()>& kernel, const std::string& name, int card) {
  try {
    call_kernel(kernel, name, card, ", which ran after its call had returned");
  } catch (const OutOfMemory&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    if (environment().strict) {
      const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
      poison(card, from_torch ? from_torch->what_without_backtrace() : error.what());
      check_usable(card);
    }
    throw;
  }
}

class KernelTask final : public TaskBody {
 public:
  KernelTask(std::string name, int card, at::TensorList reads, at::TensorList writes,
             std::function<void()> kernel)
      : name_(std::move(name)),
        card_(card),
        reads_(extents_of(reads)),
        writes_(extents_of(writes)),
        kernel_(std::move(kernel)) {}

  void run() override {
    const TaskKernelScope scope(state_);
    KernelMemory memory(card_, Queue::running());
    UseKernelMemory use(memory);
    if (SpoiledMemory::any()) {
      for (const Extent& read : reads_) {
        if (const auto failure = spoiled_memory().find(read.begin, read.bytes))
          return give_up_part(*this, failure);
      }
    }
    call_in_task(kernel_, name_, card_);
    if (!SpoiledMemory::any()) return;
    for (const Extent& write : writes_) spoiled_memory().renew(write.begin, write.bytes);
  }
  void give_up(const FailurePtr& failure) override {
    for (const Extent& write : writes_) spoiled_memory().spoil(write.begin, write.bytes, failure);
  }

 private:
  const std::string name_;
  const int card_;
  const std::vector<Extent> reads_, writes_;
  const std::function<void()> kernel_;
  const LaunchState state_ = LaunchState::of_launch();
};

}  // namespace

void launch_kernel(std::string name, at::TensorList reads, at::TensorList writes,
                   std::function<void()> kernel) {
  const int card = card_of(name, reads, writes);
  const ActivityScope activity([&] { return ActivityLabel{ActivityKind::kOperator, name}; });
  if (races::is_on()) [[unlikely]] {
    races::Tensors tensors;
    for (const at::Tensor& tensor : reads) tensors.read(tensor);
    for (const at::Tensor& tensor : writes) tensors.written(tensor);
    races::record_call(card, races::site_of(name.c_str()), tensors);
  }
  if (decide(card) == When::as_task) {
    // The kernel is the program's, which may take a lock that the thread that runs another stream holds.
    return launch(card,
                  Task(std::make_shared<KernelTask>(std::move(name), card, reads, writes, std::move(kernel))),
                  Waits::kPerhaps);
  }
  run_at_call(card, {}, {}, [&] {
    if (SpoiledMemory::any()) {
      for (const at::Tensor& tensor : reads) check_readable(tensor);
    }
    call_kernel(kernel, name, card, "");
    if (SpoiledMemory::any()) {
      for (const at::Tensor& tensor : writes) renew(tensor);
    }
  });
}

void launch_unknown_kernel(std::string name, int card, std::function<void()> kernel) {
  const ActivityScope activity([&] { return ActivityLabel{ActivityKind::kOperator, name}; });
  // A task cannot wait for its own stream, which has come to this place anyway.
  if (Queue::inside_task()) return call_kernel(kernel, name, card, "");
  const bool is_task = decide(card) == When::as_task;
  launch(card,
         Task([name = std::move(name), card, kernel = std::move(kernel), state = LaunchState::of_launch()] {
           const TaskKernelScope scope(state);
           call_in_task(kernel, name, card);
         }),
         Waits::kPerhaps);
  // A task all the same: it must not run behind a failure of its stream.
  if (!is_task) current_stream(card)->synchronize();
}

}  // namespace vdev
