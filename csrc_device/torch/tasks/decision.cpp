#include "csrc_device/torch/tasks/decision.hpp"
#include "csrc_device/torch/streams.hpp"

#include "base/schedule.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_device/torch/checks/poisoned_cards.hpp"
#include "csrc_device/torch/facts/rehearsal.hpp"
#include "csrc_device/torch/memory/host_allocator.hpp"

namespace vdev {
namespace {

// Pageable memory of at most so many bytes is read at the call, as on CUDA; the card gets it in stream order.
// A copy that blocks waits for its stream, as torch does on CUDA whatever the size: the program may go on
// with the result on another stream.
constexpr std::size_t kMostClonedBytes = std::size_t{64} << 10;

enum class Preferred : std::uint8_t {
  at_call,
  as_task,
  as_task_if_at_all,  // running at the call would fail (in a capture), or wait for other threads
};

// Returns what the calling thread and its current stream on `card` prefer.
Preferred preferred(int card) {
  check_usable(card);
  const auto& queue = current_stream(card)->queue();
  if (queue->capture()) return Preferred::as_task_if_at_all;
  static const bool async = environment().launch_async && !environment().launch_blocking;
  if (!async || SpoiledMemory::any() || Queue::inside_task()) return Preferred::at_call;
  // A first call that runs at its call would raise what its kernel finds, and the card would stay usable.
  // With a schedule, it would take no part in the order, and an order would depend on what ran before it
  // began.
  const bool first_too = queue->would_block() || environment().strict || base::schedule::is_on();
  return first_too ? Preferred::as_task_if_at_all : Preferred::as_task;
}

// Whether both tensors fill their memory in the same order, so that one run of bytes is copied.
bool have_one_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || !a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense())
    return false;
  for (std::int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) != 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

}  // namespace

bool uses_pinned_memory(const HostCopy& copy) {
  const auto& [card, host, on_card, to_card, non_blocking] = copy;
  if (host.numel() == 0 || !is_pinned(host.const_data_ptr())) return false;
  const bool same_type = host.scalar_type() == on_card.scalar_type();
  // A copy that blocks changes the dtype on the host.
  if (!same_type && (!non_blocking || host.is_quantized() || on_card.is_quantized())) return false;
  // A card's tensor that is not contiguous, or of another dtype, gets a temporary on the card.
  const bool is_whole = host.is_contiguous() && (!to_card || host.numel() == on_card.numel());
  return is_whole || (same_type && have_one_layout(host, on_card));
}

When decide(int card) {
  return preferred(card) == Preferred::at_call ? When::at_call : When::as_task;
}

When decide(const CopyBetweenCards& copy) {
  return decide(copy.source) == When::as_task ? decide(copy.target) : When::at_call;
}

HostCopyWhen decide(const HostCopy& copy) {
  const When when = decide(copy.card);
  const at::Tensor& host = copy.host;
  if (copy.non_blocking && uses_pinned_memory(copy)) return HostCopyWhen::as_task;
  if (copy.to_card && copy.non_blocking && when == When::as_task && !is_captured(copy.card) &&
      host.nbytes() <= kMostClonedBytes && host.layout() == at::kStrided && !host.is_quantized())
    return HostCopyWhen::as_task_of_clone;
  return HostCopyWhen::at_call;
}

OperatorDecision decide(const OperatorCall& call) {
  OperatorDecision decision;
  const Preferred wanted = preferred(call.card);
  if (wanted == Preferred::at_call || !call.facts.is_regular(call.arguments)) return decision;
  const CallSignature& signature = decision.unknown.emplace(call.op, call.facts, call.kernel, call.arguments);
  if (signature.valid()) {
    decision.known = find_known_call(signature);
    if (!decision.known && wanted == Preferred::as_task_if_at_all)
      decision.known = rehearse(call.op, call.facts, call.kernel, call.arguments, signature);
  }
  if (!signature.valid() || decision.known) decision.unknown.reset();
  if (!decision.known) return decision;
  if (decision.known->predictable)
    decision.when = When::as_task;
  else
    decision.resizes_first = !decision.known->resized.empty();
  return decision;
}

}  // namespace vdev
