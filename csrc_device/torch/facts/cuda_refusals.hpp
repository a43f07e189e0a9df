// What CUDA's kernels refuse, and the CPU's, which the cards run, do not. Used when cards pose as CUDA.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/ArrayRef.h>

namespace vdev {

/// Holds what CUDA refuses of one operator. Each function is null or throws; it gets the call's arguments.
/// `name` is what CUDA calls the kernel.
struct CudaRefusal {
  using Arguments = c10::ArrayRef<c10::IValue>;
  using Check = void (*)(Arguments arguments, const char* name);

  Check check = nullptr;  // raises NotImplementedError for a dtype, or what CUDA says of other arguments
  const char* name = nullptr;
  // Whether the kernel is not deterministic in this call, under torch.use_deterministic_algorithms(True).
  bool (*varies)(Arguments arguments) = nullptr;
  const char* varying_name = nullptr;

  /// Raises what CUDA raises for the call, if it does: NotImplementedError or RuntimeError. With warn_only, a
  /// kernel that is not deterministic is a warning.
  void apply(Arguments arguments) const;
};

/// Returns what CUDA's kernel of the operator refuses, which is the CPU's kernel for `key` here. Returns null
/// if it takes what the CPU's kernel takes, and always on cards that do not pose as CUDA.
const CudaRefusal* cuda_refusal_of(const c10::OperatorName& op, c10::DispatchKey key);

}  // namespace vdev
