// The call of torch's kernel on what the card's tensors are shown as.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace vdev {

/// Says for which dtypes an operator is computed in float32, and its results are rounded, as CUDA's kernels
/// do inside.
struct InFloat32 {
  using Arguments = c10::ArrayRef<c10::IValue>;

  bool half = false, bfloat16 = false, complex_half = false;
  /// The CPU's kernel takes these dtypes, too, and many times as long. It runs if there is no memory for the
  /// wider copies.
  bool has_kernel = false;
  /// The results that stay float32, the arguments that are float32 beside those of half precision, and those
  /// that the kernel writes although the schema does not say so: one bit for each.
  std::uint32_t float32_results = 0, float32_arguments = 0, written_arguments = 0;
  /// Whether a call is computed in float32. Null: each one.
  bool (*applies)(Arguments call) = nullptr;

  bool any() const { return half || complex_half; }
};

/// Returns that of an operator, on this processor.
InFloat32 in_float32(const c10::OperatorName& op);

/// Runs the kernel of `op` for `key`, which is one of the CPU's, on CPU tensors.
void run_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, const InFloat32& types,
                torch::jit::Stack& stack);

}  // namespace vdev
