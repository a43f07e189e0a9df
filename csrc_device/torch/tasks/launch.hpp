// The two ways in which a call on a card runs (decision.hpp decides which).
//
// To launch a call is to make it a task of the current stream (launch()). A call that runs at its call runs
// on the calling thread, when the stream has run what was queued before (run_at_call()).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <initializer_list>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_device/torch/memory/kernel_memory.hpp"

namespace vdev {

/// Makes `task` a task of the calling thread's current stream on `card`. The thread that waits for the stream
/// runs it, or the stream's worker if a core is free. Waits while more than Queue::kMostTasks tasks are
/// queued. `waits` says whether the task may wait for other threads.
void launch(int card, Task task, Waits waits = Waits::kNever);

/// Runs the kernel of `op` for the key `kernel`, which is one of the CPU's, on the calling thread, in the
/// order of its current stream on `card`. `stack` holds CPU tensors over memory of `card`, and afterwards the
/// kernel's results, which lie in `memory`. Raises the failure of a task that should have written an argument
/// (docs/errors.md), the errors of wait_for_current_stream(), and those of the kernel.
void run_at_call(int card, const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::DispatchKey kernel,
                 KernelMemory& memory);

/// Lists tensors of a card, or what CpuView shows of them.
using TensorRefs = std::initializer_list<const at::Tensor*>;

/// Runs `body` on the calling thread, in the order of its current stream on `card`, and returns when it has
/// run. CPU tensors that `body` makes lie in the card's memory. `reads` must name the tensors that `body`
/// reads, and `overwrites` those of which it writes every element without reading it. Raises the failure of a
/// task that should have written one of `reads`, the errors of wait_for_current_stream(), and those of
/// `body`.
void run_at_call(int card, TensorRefs reads, TensorRefs overwrites, c10::function_ref<void()> body);

/// Blocks until the calling thread's current stream on `card` has run everything, and raises what
/// Stream::synchronize_before_reading() raises. Afterwards the caller must check the memory that it reads
/// (spoiled_tensors.hpp).
void wait_for_current_stream(int card);

}  // namespace vdev
