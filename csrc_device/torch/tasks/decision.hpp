// The one place that decides whether a call on a card runs at its call or is launched as a task.
//
// A call can be a task if its results can be made before it has run. Any other call runs at its call: on the
// calling thread, once the current stream has run what was queued before. launch.hpp has a function for each.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

#include "csrc_device/torch/facts/call_signature.hpp"
#include "csrc_device/torch/facts/operator_facts.hpp"

namespace vdev {

enum class When : std::uint8_t { at_call, as_task };

/// Decides for a kernel on `card` whose results exist, and for a copy within the card. It runs at its call
/// with VDEV_LAUNCH=blocking, inside of another task, and while memory is spoiled, whose readers are to raise
/// at their calls. While the current stream is captured, it is always a task. Raises RuntimeError for a card
/// that can no longer be used, as every decide() does.
When decide(int card);

/// Describes a copy between two cards.
struct CopyBetweenCards {
  int source, target;
};
/// Decides for such a copy, which is a task if it may be one on both cards.
When decide(const CopyBetweenCards& copy);

/// Describes a copy between a card and memory of the host.
struct HostCopy {
  int card;
  const at::Tensor &host, &on_card;
  bool to_card, non_blocking;
};
/// Returns whether the host's memory is pinned, and the stream uses it itself when it comes to the copy.
/// Where a layout has to change, torch on CUDA puts a tensor of the host's pageable memory between
/// (copy_requires_temporaries() in ATen/native/cuda/Copy.cu), so the call reads the program's tensor. A dtype
/// is changed on the card, if the copy does not block.
bool uses_pinned_memory(const HostCopy& copy);
enum class HostCopyWhen : std::uint8_t {
  at_call,
  as_task,           // the program has promised not to touch the host's memory before
  as_task_of_clone,  // the host's memory is read at the call
};
/// Decides for such a copy. Only small memory is cloned, and only for a copy to the card that does not block.
HostCopyWhen decide(const HostCopy& copy);

/// Describes a call of an operator. `kernel` is one of the CPU's keys, and `arguments` are the program's.
struct OperatorCall {
  const c10::OperatorHandle& op;
  const OperatorFacts& facts;
  c10::DispatchKey kernel;
  int card;
  c10::ArrayRef<c10::IValue> arguments;
};
struct OperatorDecision {
  When when = When::at_call;
  /// What calls with this signature do. Never null for a task.
  KnownCallPtr known;
  /// The call could be a task if its arguments had the sizes in KnownCall::resized.
  bool resizes_first = false;
  /// Set if nothing is known yet: what this call does is to be remembered for this signature.
  std::optional<CallSignature> unknown;
};
/// Decides for a call of an operator. It is a task if a call with the same signature has shown what its
/// results look like. Where running at its call would fail or wait for other threads, a rehearsal finds that
/// out first.
OperatorDecision decide(const OperatorCall& call);

}  // namespace vdev
