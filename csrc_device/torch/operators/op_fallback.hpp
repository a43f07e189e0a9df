// Runs torch's CPU kernels for operators that have no kernel for vdev.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/FunctionRef.h>
#include <torch/library.h>

namespace vdev {

/// Runs the kernel of `op` for `key`, which is one of the CPU's, on the card's memory. At least one argument
/// is a tensor of a card; those whose kind `key` stands for consist of parts (tensor_parts.hpp), and others
/// may be strided. Raises NotImplementedError if torch has no such kernel.
void run_on_cpu_kernel_for(c10::DispatchKey key, const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Calls `body` with each of torch's own operators and its name, "aten::add.Tensor" for instance.
void for_each_aten_operator(c10::function_ref<void(const c10::OperatorHandle&, const char*)> body);

/// Is run_on_cpu_kernel_for() as a boxed kernel.
template <c10::DispatchKey on_cpu>
void boxed_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_on_cpu_kernel_for(on_cpu, op, stack);
}

/// Registers the CPU's kernels for the key `on_cpu` in `library`, which registers for `on_card`, unless the
/// cards have a kernel of their own. Otherwise the dispatcher would prefer an operator's generic form.
template <c10::DispatchKey on_cpu>
void register_cpu_kernels(torch::Library& library, c10::DispatchKey on_card) {
  for_each_aten_operator([&](const c10::OperatorHandle& op, const char* name) {
    if (op.hasKernelForDispatchKey(on_cpu) && !op.hasKernelForDispatchKey(on_card)) {
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&boxed_cpu_kernel<on_cpu>>());
    }
  });
}

}  // namespace vdev
