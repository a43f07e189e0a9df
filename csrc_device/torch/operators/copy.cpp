// Copies to, from and between cards, and the reading of one element.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/zero.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <cstring>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"
#include "csrc_device/torch/operators/activity_labels.hpp"
#include "csrc_device/torch/operators/cpu_view.hpp"
#include "csrc_device/torch/operators/launch.hpp"
#include "csrc_device/torch/operators/spoiled_tensors.hpp"
#include "csrc_device/torch/streams.hpp"

namespace vdev {
namespace {

// Copies between two CPU tensors; the one on the card holds its storage. A contiguous run of bytes is copied
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
  c10::impl::ExcludeDispatchKeyGuard exclude(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset);
  at::Tensor target = to;
  at::native::copy_(target, from, /*non_blocking=*/false);
}

// Makes a copy for which nobody waits; a stream runs this. A spoiled source spoils the target. The failure is
// also reported to the stream, because a host's reading of pinned memory cannot be seen.
void copy_in_stream(const at::Tensor& to, const at::Tensor& from) {
  if (!SpoiledMemory::any()) [[likely]] {
    return copy_elements(to, from);
  }
  if (const auto failure = find_spoiled(from)) {
    spoil(to, failure);
    report_failure(failure);
    return;
  }
  copy_elements(to, from);
  renew(to);
}

// Returns another tensor over the same memory. The task must not hold the caller's tensor: the worker could
// be its last owner, and destroying a Python object takes the GIL, which a thread that waits for the worker
// may hold.
at::Tensor detached(const at::Tensor& tensor) {
  return at::Tensor(
      tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                            /*allow_tensor_metadata_change=*/false));
}

// As with CUDA, only pinned memory makes a copy asynchronous: the caller has promised not to touch the memory
// before the stream has passed. Pageable memory may be changed or freed right after the call.
void enqueue_copy(int card, const at::Tensor& to, const at::Tensor& from, const at::Tensor& pinned) {
  auto stream = current_stream(card);
  stream->enqueue([to = detached(to), from = detached(from)] { copy_in_stream(to, from); });
  pinned_allocator()->record_event(pinned.mutable_data_ptr(), pinned.storage().data_ptr().get_context(),
                                   to_torch(*stream));
}

// Copies after what the current stream of `card` holds, and returns when that is done.
void copy_and_wait(int card, at::Tensor& to, const at::Tensor& from) {
  launch_and_wait(card, {&from}, {&to}, [&] { at::native::copy_(to, from, /*non_blocking=*/false); });
}

void copy_with_host(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  const bool to_card = is_card(dst.device());
  const int card = card_of_tensor(to_card ? dst : self);
  const at::Tensor& host = to_card ? self : dst;
  TORCH_CHECK(host.is_cpu(), device_name(), ": no copy from ", self.device(), " to ", dst.device(),
              "; go through the CPU");
  CpuView view(card);
  const at::Tensor from = view.show(self, /*allow_cpu=*/true);
  at::Tensor to = view.show(dst, /*allow_cpu=*/true);
  if (non_blocking && host.numel() != 0 && is_pinned(host.const_data_ptr())) {
    enqueue_copy(card, to, from, host);
    return;
  }
  copy_and_wait(card, to, from);
}

void copy_between_cards(const at::Tensor& self, const at::Tensor& dst) {
  const int source = card_of_tensor(self);
  const int target = card_of_tensor(dst);
  CpuView source_view(source);
  CpuView target_view(target);
  const at::Tensor from = source_view.show(self);
  at::Tensor to = target_view.show(dst);
  // The copy comes after what either card's current stream holds, as on CUDA. Both streams then find the copy
  // done.
  wait_for_current_stream(target);
  copy_and_wait(source, to, from);
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
    CpuView view(source);
    const at::Tensor from = view.show(self);
    at::Tensor to = view.show(dst);
    copy_and_wait(source, to, from);
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
  copy_from(src, self, non_blocking);
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const int card = card_of_tensor(self);
  CpuView view(card);
  const at::Tensor shown = view.show(self);
  at::Scalar value;
  const ActivityScope activity([&] { return label_of_reading(self); });
  launch_and_wait(card, {&shown}, {}, [&] {
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
