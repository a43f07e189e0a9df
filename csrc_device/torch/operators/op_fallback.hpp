// Runs torch's CPU kernels for operators that have no kernel for vdev.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace vdev {

/// Runs the SparseCPU kernel of `op` on the card's memory, as a boxed kernel of SparsePrivateUse1. At least
/// one argument is a sparse COO tensor of a card; the others may be strided. The kernel has run when this
/// returns, because the number of elements of its results is not known before. Raises NotImplementedError if
/// torch has no such kernel.
void run_on_sparse_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack);

}  // namespace vdev
