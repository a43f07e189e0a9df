// What is particular to torch 2.14: its c10d::Backend has no hooks for operations that succeed, and no
// question whether it has hooks of aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace vdev::torch_version {

/// Tells up to which size pinned memory is rounded to powers of two, and kept when it is freed, by the
/// program's settings (pinned_max_round_threshold_mb and pinned_max_cached_size_mb).
struct PinnedLimits {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  static std::size_t rounded() { return Config::pinned_max_round_threshold(); }
  static std::size_t cached() { return Config::pinned_max_cached_size(); }
};

/// Puts what a private pool has reserved into the figures of a card.
inline void set_private_pool(c10::CachingDeviceAllocator::DeviceStats& figures, c10::MempoolId_t pool,
                             const c10::CachingAllocator::StatArray& reserved) {
  figures.reserved_bytes_by_private_pools[pool] = reserved;
}

/// Returns a lane of a trace. In this version, Kineto's ResourceInfo takes the card as its third value. The
/// type is a parameter, because no header of Kineto is needed here otherwise.
template <class ResourceInfo>
ResourceInfo trace_lane(std::int64_t card, std::int64_t resource, std::string name) {
  return {resource, resource, card, std::move(name)};
}

/// Tells whether results of an operator depend on elements without torch's tag for it. Of the operators that
/// versions differ in, this one tags all.
inline bool lacks_dynamic_tag(std::string_view) {
  return false;
}

/// Tells whether the CPU's kernel of an operator writes beyond its memory if the arguments are zeros. None is
/// known in this version.
inline bool breaks_on_zeros(std::string_view) {
  return false;
}

/// Holds types that the lists of autocast_mode.h write without their namespace, beside those that all
/// versions have in their lists. This version has none.
namespace autocast_names {}

/// Holds the factor of PREMUL_SUM.
using PreMulSumSupplement = c10d::PreMulSumSupplement;

/// Has all virtuals that the project overrides.
using BackendOptions = c10d::Backend::Options;

/// Is what a hook for the operations that succeed is told. This torch sets no such hooks.
struct CompletionHookArgs {
  std::uint64_t completionKey = 0;
  std::optional<float> duration_ms;
};
using CompletionHook = std::function<void(const CompletionHookArgs&)>;

/// Declares the virtual that newer versions of c10d::Work have. This torch does not call it.
class Work : public c10d::Work {
 public:
  using c10d::Work::Work;
  virtual std::uint64_t getCompletionKey() const = 0;
};

/// Declares the virtuals that newer versions of c10d::Backend have. This torch calls none of them.
class Backend : public c10d::Backend {
 public:
  using c10d::Backend::Backend;
  virtual bool supportsAbortHooks() const = 0;
  virtual bool supportsCompletionHooks() const = 0;
  virtual void registerCompletionHook(std::int64_t id, CompletionHook hook) = 0;
  virtual void unregisterCompletionHook(std::int64_t id) = 0;
};

}  // namespace vdev::torch_version
