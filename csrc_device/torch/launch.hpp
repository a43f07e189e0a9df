// When an operator runs: the one place that decides it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

namespace vdev {

/// What is known of an operator's results before it has run.
enum class Results {
  written_arguments,  // it only writes to arguments that have their final sizes (out= and in-place forms)
  fresh,              // it returns tensors whose sizes or values the caller needs
};

/// Runs `op`'s CPU kernel on `stack`, which holds CPU tensors over memory of `card`, in the order of the
/// calling thread's current stream there. True: it has run, and the stack holds its results. False: it will
/// run, later in the stream's order, and the stack is unchanged; only possible with
/// Results::written_arguments. Raises the stream's pending error, or what the kernel raises.
bool launch(int card, const c10::OperatorHandle& op, torch::jit::Stack& stack, Results results);

/// Runs `body` on the calling thread in the order of its current stream on `card`: when it returns, it has
/// run. CPU tensors that it makes lie in the card's memory.
void launch_and_wait(int card, c10::function_ref<void()> body);

/// Blocks until the calling thread's current stream on `card` has run everything; raises its pending error.
void wait_for_current_stream(int card);

}  // namespace vdev
