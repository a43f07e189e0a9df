#include "csrc_device/torch/tasks/launch.hpp"

#include <ATen/Parallel.h>

#include <utility>

#include "base/cores.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/checks/poisoned_cards.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/facts/operator_facts.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/kernels/kernel_call.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/kernels/spoiled_tensors.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/tasks/activity_labels.hpp"
#include "csrc_device/torch/threads/current_card.hpp"

namespace vdev {
namespace {

void run_on_card(int card, KernelMemory& memory, c10::function_ref<void()> body) {
  const ActivityRun activity(card);
  CurrentCard current(card);
  UseKernelMemory use(memory);
  KernelScope scope;
  body();
}

// Returns whether a worker finds a core on which no rank computes. The threads of a kernel that the worker
// runs would only take turns with those of the host otherwise.
bool has_spare_core() {
  static const int cores = base::UsableCores::of_this_process().count();
  static const int ranks = environment().machine_ranks;
  thread_local int told = 0;
  const int threads = at::get_num_threads();
  if (threads != std::exchange(told, threads)) set_kernel_threads(threads);
  return cores > ranks * threads;
}

// A graph holds tasks only. Without this, the wait for the stream would be refused, and the error would not
// say who has waited.
void refuse_in_capture(int card, const c10::OperatorHandle& op) {
  const auto stream = current_stream(card);
  if (!stream->queue()->capture()) [[likely]] {
    return;
  }
  const char* const why = facts_of(op).why_at_call;
  const std::string what = c10::str(op.operator_name(), ", which runs at its call",
                                    why != nullptr ? c10::str(" because it ", why) : " with these arguments",
                                    " and so waits for the stream (docs/operators.md)");
  refuse_captured(*stream, what.c_str());
}

/// Waits like wait_for_current_stream(), and lets streams of high priority go first, as before a task.
void wait_for_turn(int card) {
  wait_for_current_stream(card);
  Queue& queue = *current_stream(card)->queue();
  if (!queue.is_outranked() || Queue::inside_task()) [[likely]] {
    return;
  }
  WithoutGil no_gil;
  queue.give_way();
}

}  // namespace

// torch calls some operators with the interpreter's lock. The task that the wait is for may be under way on a
// thread that needs the lock: the allocator gives it up and takes it again.
void wait_for_current_stream(int card) {
  check_usable(card);
  WithoutGil no_gil;
  with_torch_errors([&] { current_stream(card)->synchronize_before_reading(); });
}

// What is queued on the stream (operators, copies, collectives, host functions) comes first, and the next
// calls find this one done. Only after the wait is it known which memory the queued tasks have failed to
// write.
void run_at_call(int card, TensorRefs reads, TensorRefs overwrites, c10::function_ref<void()> body) {
  wait_for_turn(card);
  KernelMemory memory(card);
  if (!SpoiledMemory::any()) [[likely]] {
    return run_on_card(card, memory, body);
  }
  for (const auto* tensor : reads) check_readable(*tensor);
  run_on_card(card, memory, body);
  for (const auto* tensor : overwrites) renew(*tensor);
}

void run_at_call(int card, const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::DispatchKey key,
                 KernelMemory& memory) {
  const ActivityScope activity([&] { return label_of(op); });
  refuse_in_capture(card, op);
  const auto kernel = [&] { run_kernel(op, key, facts_of(op).in_float32, stack); };
  wait_for_turn(card);
  if (!SpoiledMemory::any()) [[likely]] {
    return run_on_card(card, memory, kernel);
  }
  const auto overwritten = check_arguments(op, stack);
  run_on_card(card, memory, kernel);
  for (const auto& tensor : overwritten) renew(tensor);
}

void launch(int card, Task task, Waits waits) {
  const auto stream = current_stream(card);
  stream->enqueue(std::move(task), has_spare_core() ? Start::kSoon : Start::kByWaiter, waits);
  Queue& queue = *stream->queue();
  if (queue.length() <= Queue::kMostTasks) [[likely]] {
    return;
  }
  WithoutGil no_gil;
  queue.bound_length(Queue::kMostTasks);
}

}  // namespace vdev
