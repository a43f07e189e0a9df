#include "csrc_device/torch/kernels/kernel_scope.hpp"

#include <pthread.h>

#include <atomic>
#include <string_view>

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

// torch gives this name to the threads that run the backward of a device.
bool is_of_autograd() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 &&
         std::string_view(name).starts_with("pt_autograd");
}

// Relaxed: a backward is handed to its thread behind a lock, which orders the number with it.
void follow_program() {
  static std::atomic<int> of_last_launch{0};
  thread_local const bool follows = is_of_autograd();
  if (follows) {
    if (const int threads = of_last_launch.load(std::memory_order_relaxed); threads > 0) set_threads(threads);
  } else if (!Queue::on_worker()) {  // a worker has the number of a launch that may be long ago
    const int threads = at::get_num_threads();
    if (of_last_launch.load(std::memory_order_relaxed) != threads)
      of_last_launch.store(threads, std::memory_order_relaxed);
  }
}

}  // namespace

LaunchState LaunchState::of_thread() {
  const auto& flags = c10::AutogradState::get_tls_state();
  return {flags.get_grad_mode(), flags.get_inference_mode(), at::get_num_threads(), base::denormal_mode()};
}

LaunchState LaunchState::of_launch() {
  follow_program();
  return of_thread();
}

namespace {

thread_local int scopes = 0;

}  // namespace

KernelScope::KernelScope() : exclude_(excluded_keys) {
  ++scopes;
  follow_program();
}

KernelScope::~KernelScope() {
  --scopes;
}

bool KernelScope::active() {
  return scopes > 0;
}

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
