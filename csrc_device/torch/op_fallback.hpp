// torch's CPU kernels for operators that have none for vdev.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace vdev {

/// Runs `op`'s SparseCPU kernel on the card's memory, as a boxed kernel of SparsePrivateUse1: at least one of
/// its arguments is a sparse COO tensor of a card; the others may be strided. It has run when this returns,
/// since nobody knows before how many elements its results have. Raises NotImplementedError where torch has
/// no such kernel.
void run_on_sparse_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                              torch::jit::Stack* stack);

}  // namespace vdev
