// The state of a thread that CPU kernels depend on.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>

namespace vdev {

/// Holds those parts of the launching thread's state that a kernel must find when another thread runs it.
struct LaunchState {
  /// Takes the state of the calling thread.
  static LaunchState of_thread();
  /// Takes the state for a kernel that the calling thread launches. A thread of autograd keeps the number of
  /// threads that it found when it was first asked, while the CPU's backward has the number of the thread
  /// that calls it. So a thread of autograd takes over the number of the program's last launch before.
  static LaunchState of_launch();
  bool grad_mode, inference_mode;
  int threads;              // that a kernel may use
  std::uint64_t denormals;  // base::denormal_mode(), which torch.set_flush_denormal() sets
};

/// Lets kernels call further operators on the CPU tensors that they are shown: autograd does not record these
/// operators, and the autocast of another device type does not cast them. Takes over the number of threads as
/// LaunchState::of_launch() does.
class KernelScope {
 public:
  KernelScope();
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  /// Returns whether the calling thread is in such a kernel: what it calls, the program has not called.
  static bool active();

 private:
  const c10::impl::ExcludeDispatchKeyGuard exclude_;
};

/// Does what KernelScope does for a kernel that runs as a task. The thread that runs the task may be in the
/// midst of anything, such as a dispatch mode of Python or a profiled call, of which the kernel must see
/// nothing.
class TaskKernelScope {
 public:
  explicit TaskKernelScope(const LaunchState& state);
  ~TaskKernelScope();
  TaskKernelScope(const TaskKernelScope&) = delete;
  TaskKernelScope& operator=(const TaskKernelScope&) = delete;

 private:
  const LaunchState before_ = LaunchState::of_thread();
  const c10::impl::ForceDispatchKeyGuard keys_;
  std::optional<at::DisableRecordFunctionGuard> unrecorded_;  // making one takes time
};

}  // namespace vdev
