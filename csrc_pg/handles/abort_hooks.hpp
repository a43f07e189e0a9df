// The hooks that a user sets for the failure or the abort of a group.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "csrc_pg/handles/hook_table.hpp"
#include "csrc_pg/operations/outcome.hpp"

namespace vccl {

/// Calls hooks when the first operation of a group fails, and when the program aborts the group. Thread-safe.
class AbortHooks {
 public:
  using Hook = HookTable<>::Hook;

  void set(std::int64_t id, Hook hook) { hooks_.set(id, std::move(hook)); }
  void forget(std::int64_t id) { hooks_.forget(id); }

  /// Calls the hooks, one after the other and on a thread of their own, if the group has not failed before.
  /// The caller does not wait for them.
  static void failed(const std::shared_ptr<AbortHooks>& hooks) noexcept;
  /// Calls failed() if `outcome` ends with an error.
  static void watch(const std::shared_ptr<AbortHooks>& hooks, Outcome& outcome);
  /// Calls the hooks on the calling thread, which must not hold the GIL.
  void call() noexcept { hooks_.call("abort"); }

 private:
  HookTable<> hooks_;
  std::atomic<bool> failed_{false};  // whether a failure has called them
};

}  // namespace vccl
