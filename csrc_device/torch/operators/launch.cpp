#include "csrc_device/torch/operators/launch.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/current_card.hpp"
#include "csrc_device/torch/errors.hpp"
#include "csrc_device/torch/memory/cpu_allocator.hpp"
#include "csrc_device/torch/operators/activity_labels.hpp"
#include "csrc_device/torch/operators/spoiled_tensors.hpp"

namespace vdev {
namespace {

// Kernels call further operators on the CPU tensors that they are shown. Autograd must not record these
// operators, and the autocast of another device type must not cast them.
constexpr c10::DispatchKeySet excluded_keys =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

}  // namespace

void wait_for_current_stream(int card) {
  with_torch_errors([&] { current_stream(card)->synchronize_before_reading(); });
}

namespace {

void run_on_card(int card, c10::function_ref<void()> body) {
  const ActivityRun activity(card);
  CurrentCard current(card);
  AllocateOnCard allocate(card);
  c10::impl::ExcludeDispatchKeyGuard exclude(excluded_keys);
  body();
}

}  // namespace

// Both launch() and launch_and_wait() run on the calling thread, once the stream has drained. What is queued
// there (non-blocking copies, collectives, host functions) comes first, and what follows finds the operator
// done. Only after the wait is it known which memory the queued tasks have failed to write.
void launch_and_wait(int card, TensorRefs reads, TensorRefs overwrites, c10::function_ref<void()> body) {
  wait_for_current_stream(card);
  if (!SpoiledMemory::any()) [[likely]] {
    return run_on_card(card, body);
  }
  for (const auto* tensor : reads) check_readable(*tensor);
  run_on_card(card, body);
  for (const auto* tensor : overwrites) renew(*tensor);
}

void launch(int card, const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::DispatchKey key) {
  const ActivityScope activity([&] { return label_of(op); });
  const auto kernel = [&] { op.redispatchBoxed(c10::DispatchKeySet(key), &stack); };
  wait_for_current_stream(card);
  if (!SpoiledMemory::any()) [[likely]] {
    return run_on_card(card, kernel);
  }
  const auto overwritten = check_arguments(op, stack);
  run_on_card(card, kernel);
  for (const auto& tensor : overwritten) renew(tensor);
}

}  // namespace vdev
