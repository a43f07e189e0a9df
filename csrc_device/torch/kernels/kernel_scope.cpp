#include "csrc_device/torch/kernels/kernel_scope.hpp"

#include <ATen/Parallel.h>
#include <c10/core/DispatchKeySet.h>

#include "base/denormals.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {
namespace {

constexpr c10::DispatchKeySet excluded_keys =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

void set_state(const LaunchState& state) {
  auto& flags = c10::AutogradState::get_tls_state();
  flags.set_grad_mode(state.grad_mode);
  flags.set_inference_mode(state.inference_mode);
  base::set_denormal_mode(state.denormals);
}

// The number is the process's and the thread's at once, so it is set only where it differs.
void set_threads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

}  // namespace

LaunchState::LaunchState()
    : grad_mode(c10::AutogradState::get_tls_state().get_grad_mode()),
      inference_mode(c10::AutogradState::get_tls_state().get_inference_mode()),
      threads(at::get_num_threads()),
      denormals(base::denormal_mode()) {}

KernelScope::KernelScope() : exclude_(excluded_keys) {}

TaskKernelScope::TaskKernelScope(const LaunchState& state)
    : keys_(c10::default_included_set, c10::default_excluded_set | excluded_keys) {
  set_state(state);
  set_threads(state.threads);
  if (at::hasCallbacks()) unrecorded_.emplace();
}

TaskKernelScope::~TaskKernelScope() {
  set_state(before_);
  // A worker has no number of its own, and restoring an old one would undo the program's last choice.
  if (!Queue::on_worker()) set_threads(before_.threads);
}

}  // namespace vdev
