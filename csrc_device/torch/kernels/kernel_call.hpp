// The call of torch's kernel on what the card's tensors are shown as.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace vdev {

/// Says for which dtypes an operator is computed in float32, and its results are rounded, as CUDA's kernels
/// do inside.
struct InFloat32 {
  bool half = false, bfloat16 = false;
  /// The CPU's kernel takes these dtypes, too, and many times as long. It runs if there is no memory for the
  /// wider copies.
  bool has_kernel = false;
};

/// Returns that of an operator, on this processor.
InFloat32 in_float32(const c10::OperatorName& op);

/// Runs the kernel of `op` for `key`, which is one of the CPU's, on CPU tensors.
void run_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, InFloat32 types,
                torch::jit::Stack& stack);

}  // namespace vdev
