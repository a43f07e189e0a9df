#include "csrc_pg/handles/abort_hooks.hpp"

#include "csrc_pg/handles/callback_pool.hpp"

namespace vccl {

void AbortHooks::failed(const std::shared_ptr<AbortHooks>& hooks) noexcept {
  if (!hooks->hooks_.used() || hooks->failed_.exchange(true, std::memory_order_relaxed)) return;
  // The calling thread may be a stream's worker, which hooks must not keep.
  try {
    run_callback([hooks] { hooks->call(); });
  } catch (const std::exception& error) {
    TORCH_WARN("the abort hooks of a group were not called: ", error.what());
  }
}

void AbortHooks::watch(const std::shared_ptr<AbortHooks>& hooks, Outcome& outcome) {
  if (!hooks->hooks_.used()) return;
  outcome.when_finished([hooks](std::exception_ptr error) {
    if (error) failed(hooks);
  });
}

}  // namespace vccl
