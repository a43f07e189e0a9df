#include "csrc_device/torch/launch.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/cpu_allocator.hpp"
#include "csrc_device/torch/errors.hpp"

namespace vdev {
namespace {

// Kernels call further operators on the CPU tensors they are shown; those must neither be recorded by
// autograd nor cast by the autocast of another device type.
constexpr c10::DispatchKeySet excluded_keys =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

class CurrentCard {
 public:
  explicit CurrentCard(int card) : card_(card), previous_(current_card()) {
    if (previous_ != card) {
      set_current_card(card);
    }
  }
  ~CurrentCard() {
    if (previous_ != card_) {
      set_current_card(previous_);
    }
  }

 private:
  int card_;
  int previous_;
};

}  // namespace

void wait_for_current_stream(int card) {
  with_torch_errors([&] { current_stream(card)->synchronize(); });
}

// Both forms run on the calling thread, once the stream has drained: what is queued there (non-blocking
// copies, collectives, host functions) comes first, and what follows finds the operator done.
void launch_and_wait(int card, c10::function_ref<void()> body) {
  wait_for_current_stream(card);
  CurrentCard current(card);
  AllocateOnCard allocate(card);
  c10::impl::ExcludeDispatchKeyGuard exclude(excluded_keys);
  body();
}

bool launch(int card, const c10::OperatorHandle& op, torch::jit::Stack& stack, Results) {
  launch_and_wait(card, [&] { op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack); });
  return true;
}

}  // namespace vdev
