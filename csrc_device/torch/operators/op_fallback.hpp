// Runs torch's CPU kernels for operators that have no kernel for vdev.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

namespace vdev {

/// Runs the SparseCPU kernel of `op` on the card's memory, as a boxed kernel of sparse_key(). At least
/// one argument is a sparse COO tensor of a card; the others may be strided. Raises NotImplementedError if
/// torch has no such kernel.
void run_on_sparse_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack);

/// Calls `body` with each of torch's own operators and its name, "aten::add.Tensor" for instance.
void for_each_aten_operator(c10::function_ref<void(const c10::OperatorHandle&, const char*)> body);

}  // namespace vdev
