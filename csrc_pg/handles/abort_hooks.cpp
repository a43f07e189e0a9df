#include "csrc_pg/handles/abort_hooks.hpp"

#include "csrc_pg/handles/callback_pool.hpp"

namespace vccl {

void AbortHooks::watch(const std::shared_ptr<AbortHooks>& hooks, Outcome& outcome) {
  if (!hooks->hooks_.used()) return;
  outcome.when_finished([hooks](std::exception_ptr error) {
    if (!error || hooks->failed_.exchange(true, std::memory_order_relaxed)) return;
    // The thread that ends an operation may be a stream's worker, which hooks must not keep.
    try {
      run_callback([hooks] { hooks->call(); });
    } catch (const std::exception& failure) {
      TORCH_WARN("the abort hooks of a group were not called: ", failure.what());
    }
  });
}

}  // namespace vccl
