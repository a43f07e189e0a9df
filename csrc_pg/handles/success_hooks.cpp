#include "csrc_pg/handles/success_hooks.hpp"

namespace vccl {

void SuccessHooks::watch(const std::shared_ptr<SuccessHooks>& hooks,
                         const std::shared_ptr<Outcome>& outcome) {
  if (!hooks->hooks_.used()) return;
  // The callback owns the outcome that keeps it, until the outcome is finished.
  outcome->when_finished([hooks, outcome](std::exception_ptr error) {
    if (error) return;
    vdev::torch_version::CompletionHookArgs arguments;
    arguments.completionKey = outcome->key();
    arguments.duration_ms = outcome->duration_ms();
    hooks->hooks_.call("completion", arguments);
  });
}

}  // namespace vccl
