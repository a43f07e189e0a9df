// The hooks that torch sets for the operations of a group that succeed.
#pragma once

#include <cstdint>
#include <memory>

#include "csrc_device/torch/torch_version.hpp"
#include "csrc_pg/handles/hook_table.hpp"
#include "csrc_pg/operations/outcome.hpp"

namespace vccl {

/// Calls hooks once for each operation that succeeds, on the thread that ends it. So a hook must be short,
/// and must neither take the GIL nor use the group: torch's flight recorder is such a hook. Thread-safe.
class SuccessHooks {
 public:
  using Hook = vdev::torch_version::CompletionHook;

  void set(std::int64_t id, Hook hook) { hooks_.set(id, std::move(hook)); }
  void forget(std::int64_t id) { hooks_.forget(id); }

  /// Calls the hooks when `outcome` is finished, unless it has an error. They get the outcome's key, which is
  /// that of the handle, too.
  static void watch(const std::shared_ptr<SuccessHooks>& hooks, const std::shared_ptr<Outcome>& outcome);

 private:
  HookTable<const vdev::torch_version::CompletionHookArgs&> hooks_;
};

}  // namespace vccl
