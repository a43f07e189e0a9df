// The one place that decides when an operator runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <initializer_list>

namespace vdev {

/// Runs the kernel of `op` for the key `kernel`, which is one of the CPU's, on the calling thread, in the
/// order of its current stream on `card`. `stack` holds CPU tensors over memory of `card`, and afterwards the
/// kernel's results. Raises the stream's pending error, the failure of a collective that should have written
/// an argument (docs/errors.md), or what the kernel raises.
void launch(int card, const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::DispatchKey kernel);

/// Lists tensors of a card, or what CpuView shows of them.
using TensorRefs = std::initializer_list<const at::Tensor*>;

/// Runs `body` on the calling thread, in the order of its current stream on `card`, and returns when it has
/// run. CPU tensors that `body` makes lie in the card's memory. `reads` are the tensors that `body` reads.
/// `overwrites` are the tensors of which it writes every element without reading it. Raises what launch()
/// raises.
void launch_and_wait(int card, TensorRefs reads, TensorRefs overwrites, c10::function_ref<void()> body);

/// Blocks until the calling thread's current stream on `card` has run everything, and raises its pending
/// error. Afterwards the caller must check the memory that it reads (spoiled_tensors.hpp).
void wait_for_current_stream(int card);

}  // namespace vdev
