// Copies to, from and between cards, and the reading of one element.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/zero.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <cstring>
#include <optional>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/checks/gpu_trace.hpp"
#include "csrc_device/torch/checks/sync_debug_mode.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/cpu_view.hpp"
#include "csrc_device/torch/kernels/host_memory.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/kernels/spoiled_tensors.hpp"
#include "csrc_device/torch/kernels/touched.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_device/torch/tasks/activity_labels.hpp"
#include "csrc_device/torch/tasks/decision.hpp"
#include "csrc_device/torch/tasks/launch.hpp"

namespace vdev {
namespace {

// Copies between two CPU tensors over memory of cards or of the host. A contiguous run of bytes is copied
// without the kernel, which would start a team of threads for the stream's worker.
void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  const bool same_bytes = to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
                          to.is_contiguous() && from.is_contiguous() && to.is_conj() == from.is_conj() &&
                          to.is_neg() == from.is_neg();
  if (same_bytes) {
    if (to.numel() != 0) {
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
    }
    return;
  }
  at::Tensor target = to;
  at::native::copy_(target, from, /*non_blocking=*/false);
}

// Returns another tensor over the same memory. The task must not hold the caller's tensor: the worker could
// be its last owner, and destroying a Python object takes the GIL, which a thread that waits for the worker
// may hold.
at::Tensor detached(const at::Tensor& tensor) {
  return at::Tensor(
      tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                            /*allow_tensor_metadata_change=*/false));
}

// Makes a copy for which nobody waits. It owns what the tensors own. A spoiled source spoils the target. The
// failure is also the stream's, because a host's reading of pinned memory cannot be seen.
class CopyTask final : public TaskBody {
 public:
  CopyTask(int card, at::Tensor to, at::Tensor from)
      : card_(card), to_(std::move(to)), from_(std::move(from)) {}

  void run() override {
    const TaskKernelScope scope(state_);
    KernelMemory memory(card_, Queue::running());
    UseKernelMemory use(memory);
    if (!SpoiledMemory::any()) [[likely]] {
      return copy_elements(to_, from_);
    }
    if (const auto failure = find_spoiled(from_)) return give_up_part(*this, failure);
    copy_elements(to_, from_);
    renew(to_);
  }
  void give_up(const FailurePtr& failure) override { spoil(to_, failure); }

 private:
  const int card_;
  const at::Tensor to_, from_;
  const LaunchState state_ = LaunchState::of_launch();
};

Task copy_task(int card, at::Tensor to, at::Tensor from) {
  return Task(std::make_shared<CopyTask>(card, std::move(to), std::move(from)));
}

// Copies after what the current stream of `card` holds, and returns when that is done.
void copy_and_wait(int card, at::Tensor& to, const at::Tensor& from) {
  run_at_call(card, {&from}, {&to}, [&] { at::native::copy_(to, from, /*non_blocking=*/false); });
}

// Tells the race detector of a copy between a card and the host. As on CUDA, the stream reads pinned memory
// when it comes to the copy, and writes to the host's memory then, pinned or not. Other memory is read within
// the call.
void watch_copy_with_host(const HostCopy& copy) {
  const at::Tensor& host = copy.host;
  const bool by_stream = host.numel() != 0 && (!copy.to_card || uses_pinned_memory(copy));
  if (by_stream && copy.non_blocking) races::follow(host);
  const bool is_followed = races::is_followed(host);
  const races::CallScope scope("aten::copy_");
  const auto stream = current_stream(copy.card);
  if (is_followed && !by_stream) races::host_access(scope.site(), {races::touched_on_host(host, false)});
  std::vector<races::Touched> touched;
  touched.emplace_back(copy.on_card, copy.to_card);
  if (is_followed && by_stream) touched.push_back(races::touched_on_host(host, !copy.to_card));
  races::access(*stream, scope.site(), touched);
  if (!copy.non_blocking) races::host_waits_for(*stream, 0, "a blocking copy");
}

void watch_copy_on_cards(int source, const at::Tensor& self, const at::Tensor& dst) {
  const races::CallScope scope("aten::copy_");
  races::Tensors tensors;
  tensors.read(self);
  tensors.written(dst);
  races::record_call(source, scope.site(), tensors);
}

void copy_with_host(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const bool to_card = is_card(dst.device());
  const int card = card_of_tensor(to_card ? dst : self);
  const at::Tensor& host = to_card ? self : dst;
  TORCH_CHECK(host.is_cpu(), device_name(), ": no copy from ", self.device(), " to ", dst.device(),
              "; go through the CPU");
  if (!non_blocking && host.numel() != 0) before_waiting_call(card);
  const HostCopy copy{card, host, to_card ? dst : self, to_card, non_blocking};
  if (races::is_on()) [[unlikely]]
    watch_copy_with_host(copy);
  const HostCopyWhen when = decide(copy);
  CpuView view(card, CpuView::Memory::borrowed);
  const at::Tensor on_card = view.show(copy.on_card);
  if (when == HostCopyWhen::as_task) {
    const auto stream = current_stream(card);
    const at::Tensor pinned = detached(host);
    stream->enqueue(to_card ? copy_task(card, on_card, pinned) : copy_task(card, pinned, on_card),
                    Start::kAtOnce, Waits::kNever);
    pinned_allocator()->record_event(host.mutable_data_ptr(), host.storage().data_ptr().get_context(),
                                     to_torch(*stream));
    return;
  }
  if (when == HostCopyWhen::as_task_of_clone) {
    const KernelScope scope;
    // The race detector has been told of the copy already, and would take the clone for another access.
    std::optional<at::DisableRecordFunctionGuard> unseen;
    if (races::is_on()) [[unlikely]]
      unseen.emplace();
    launch(card, copy_task(card, on_card, host.clone()));
    return;
  }
  at::Tensor to = to_card ? on_card : dst;
  copy_and_wait(card, to, to_card ? self : on_card);
}

// Tells the tracer that `waiter` waits for what `stream` holds now. CUDA does this with an event, which is
// told of, too.
void trace_order(const Stream& waiter, const Stream& stream) {
  if (!traces_calls()) [[likely]]
    return;
  const char event = 0;  // its address is a name that no other event has meanwhile
  const auto name = traced_name(&event);
  report_traced_call(TracedCall::event_creation, name);
  report_traced_call(TracedCall::event_record, name, traced_name(stream));
  report_traced_call(TracedCall::event_wait, name, traced_name(waiter));
  report_traced_call(TracedCall::event_deletion, name);
}

void copy_between_cards(const at::Tensor& self, const at::Tensor& dst) {
  const int source = card_of_tensor(self);
  const int target = card_of_tensor(dst);
  const bool as_task = decide(CopyBetweenCards{source, target}) == When::as_task;
  const auto memory = as_task ? CpuView::Memory::borrowed : CpuView::Memory::kept;
  CpuView source_view(source, memory);
  CpuView target_view(target, memory);
  const at::Tensor from = source_view.show(self);
  at::Tensor to = target_view.show(dst);
  // The copy comes after what either card's current stream holds, and before what they get next, as on CUDA.
  const auto theirs = current_stream(target);
  const auto ours = current_stream(source);
  if (as_task) {
    ours->wait(theirs->record());
  } else {
    wait_for_current_stream(target);
  }
  trace_order(*ours, *theirs);
  if (races::is_on()) [[unlikely]] {
    races::wait(*ours, *theirs);
    watch_copy_on_cards(source, self, dst);
    races::wait(*theirs, *ours);
  }
  if (!as_task) {
    copy_and_wait(source, to, from);
  } else {
    launch(source, copy_task(source, to, from));
    theirs->wait(ours->record());
  }
  trace_order(*theirs, *ours);
}

void copy_on_card(int card, const at::Tensor& self, const at::Tensor& dst) {
  if (races::is_on()) [[unlikely]]
    watch_copy_on_cards(card, self, dst);
  if (decide(card) == When::as_task) {
    CpuView view(card, CpuView::Memory::borrowed);
    const at::Tensor from = view.show(self);
    launch(card, copy_task(card, view.show(dst), from));
  } else {
    CpuView view(card);
    const at::Tensor from = view.show(self);
    at::Tensor to = view.show(dst);
    copy_and_wait(card, to, from);
  }
}

void copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const ActivityScope activity([&] { return label_of_copy(self, dst); });
  const int source = card_of_tensor(self);
  const int target = card_of_tensor(dst);
  if (source < 0 || target < 0) {
    copy_with_host(self, dst, non_blocking);
  } else if (source != target) {
    copy_between_cards(self, dst);
  } else {
    copy_on_card(source, self, dst);
  }
}

// Checks what can be checked before the stream runs the copy. A copy to or from a card always comes here,
// whichever of the two tensors is on the CPU.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  TORCH_CHECK(
      !self._is_zerotensor(),
      "ZeroTensors are immutable. Please materialize the tensor using `.clone()`, if you want a mutable "
      "zero tensor.");
  if (self.is_same(src)) {
    return self;
  }
  if (src._is_zerotensor()) {
    return self.zero_();
  }
  if (self.sizes() != src.sizes()) {
    const auto shape = at::infer_size(self.sizes(), src.sizes());
    TORCH_CHECK(self.sizes() == shape, "output with shape ", self.sizes(),
                " doesn't match the broadcast shape ", at::IntArrayRef(shape));
  }
  // The kernel would find these only when it runs.
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, src);
  copy_from(src, self, non_blocking);
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const int card = card_of_tensor(self);
  before_waiting_call(card);
  CpuView view(card);
  const at::Tensor shown = view.show(self);
  at::Scalar value;
  const ActivityScope activity([&] { return label_of_reading(self); });
  if (races::is_on()) [[unlikely]] {
    races::Tensors tensors;
    tensors.read(self);
    races::record_call(card, races::site_of("aten::item"), tensors);
    races::host_waits_for(*current_stream(card), 0, "aten::item");
  }
  run_at_call(card, {&shown}, {}, [&] {
    value = at::_ops::_local_scalar_dense::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), shown);
  });
  return value;
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  m.impl("copy_", &copy_);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

}  // namespace
}  // namespace vdev
