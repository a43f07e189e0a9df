// Hooks with numbers, by which a user can take them away again.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

namespace vccl {

/// Holds the hooks of one kind that a group has. Thread-safe.
template <typename... Arguments>
class HookTable {
 public:
  using Hook = std::function<void(Arguments...)>;

  /// Sets the hook with the number `id`, in the place of an earlier one.
  void set(std::int64_t id, Hook hook) {
    auto shared = std::make_shared<const Hook>(std::move(hook));
    {
      std::lock_guard lock(mutex_);
      hooks_[id].swap(shared);
    }
    used_.store(true, std::memory_order_relaxed);
    // The earlier hook is destroyed here, without the lock.
  }

  /// Forgets the hook with that number, if there is one. A call that is under way goes on.
  void forget(std::int64_t id) {
    typename Hooks::node_type forgotten;  // destroyed after the lock is released
    std::lock_guard lock(mutex_);
    forgotten = hooks_.extract(id);
  }

  /// Returns whether there has ever been a hook. Relaxed, because whether an operation that begins at the
  /// same time as set() is still seen by the hook is nobody's business.
  bool used() const noexcept { return used_.load(std::memory_order_relaxed); }

  /// Calls the hooks in the order of their numbers. `kind` names them in the warning about a hook that
  /// throws, which changes nothing.
  void call(const char* kind, Arguments... arguments) noexcept {
    std::vector<std::pair<std::int64_t, std::shared_ptr<const Hook>>> hooks;
    {
      std::lock_guard lock(mutex_);
      hooks.assign(hooks_.begin(), hooks_.end());
    }
    for (const auto& [id, hook] : hooks) {
      try {
        (*hook)(arguments...);
      } catch (const std::exception& error) {
        TORCH_WARN("the ", kind, " hook ", id, " failed: ", error.what());
      }
    }
  }

 private:
  using Hooks = std::map<std::int64_t, std::shared_ptr<const Hook>>;

  std::mutex mutex_;
  // Shared, because the calls are made without the lock: a function of Python takes the GIL when it is
  // copied, called or destroyed.
  Hooks hooks_;
  std::atomic<bool> used_{false};
};

}  // namespace vccl
