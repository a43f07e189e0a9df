// The one place that decides when an operator runs.
//
// An operator whose results can be made ahead is a task of the current stream (launch_later()). Any other one
// runs on the calling thread, when the stream has run what was queued before (launch(), launch_and_wait()).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <initializer_list>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_device/torch/memory/kernel_memory.hpp"

namespace vdev {

/// Runs the kernel of `op` for the key `kernel`, which is one of the CPU's, on the calling thread, in the
/// order of its current stream on `card`. `stack` holds CPU tensors over memory of `card`, and afterwards the
/// kernel's results, which lie in `memory`. Raises the failure of a task that should have written an argument
/// (docs/errors.md), what wait_for_current_stream() raises, or what the kernel raises.
void launch(int card, const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::DispatchKey kernel,
            KernelMemory& memory);

/// Lists tensors of a card, or what CpuView shows of them.
using TensorRefs = std::initializer_list<const at::Tensor*>;

/// Runs `body` on the calling thread, in the order of its current stream on `card`, and returns when it has
/// run. CPU tensors that `body` makes lie in the card's memory. `reads` are the tensors that `body` reads.
/// `overwrites` are the tensors of which it writes every element without reading it. Raises what launch()
/// raises.
void launch_and_wait(int card, TensorRefs reads, TensorRefs overwrites, c10::function_ref<void()> body);

/// Says when an operator on a card runs.
enum class When {
  now,              // at its call
  later,            // as a task, if its results can be made ahead
  later_if_at_all,  // the same; running it now would fail (in a capture), or wait for other threads
};

/// Returns when operators of the calling thread on `card` run (VDEV_LAUNCH). They run now inside a task, and
/// while memory is spoiled, whose readers are to raise at the call.
When when_to_launch(int card);

/// Makes `task` a task of the calling thread's current stream on `card`. The thread that waits for the stream
/// runs it, or the stream's worker if a core is free. Waits while more than kMostTasks tasks are queued.
/// `waits` says whether the task may wait for other threads.
void launch_later(int card, Task task, Waits waits = Waits::kNever);
inline constexpr std::uint64_t kMostTasks = 1024;

/// Blocks until the calling thread's current stream on `card` has run everything, and raises what
/// Stream::synchronize_before_reading() raises. Afterwards the caller must check the memory that it reads
/// (spoiled_tensors.hpp).
void wait_for_current_stream(int card);

}  // namespace vdev
