// What is particular to torch 2.12: it has no limits for pinned memory, no figures of private pools, lists of
// autocast with named dimensions, NCCL's name for the factor of PREMUL_SUM, another order of the members of
// Kineto's ResourceInfo, an operator without a tag and one without a check. Its c10d::Backend is that
// of 2.13.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/NamedTensorUtils.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace vdev::torch_version {

/// Tells up to which size pinned memory is rounded to powers of two, and kept when it is freed. This torch
/// has no settings for it, so there is no limit.
struct PinnedLimits {
  static std::size_t rounded() { return std::numeric_limits<std::size_t>::max(); }
  static std::size_t cached() { return std::numeric_limits<std::size_t>::max(); }
};

/// Puts what a private pool has reserved into the figures of a card. This torch has no such figures.
inline void set_private_pool(c10::CachingDeviceAllocator::DeviceStats&, c10::MempoolId_t,
                             const c10::CachingAllocator::StatArray&) {}

/// Returns a lane of a trace. In this version, Kineto's ResourceInfo takes the card as its first value. The
/// type is a parameter, because no header of Kineto is needed here otherwise.
template <class ResourceInfo>
ResourceInfo trace_lane(std::int64_t card, std::int64_t resource, std::string name) {
  return {card, resource, resource, std::move(name)};
}

/// Tells whether results of an operator depend on elements without torch's tag for it. Later versions tag it.
inline bool lacks_dynamic_tag(std::string_view op) {
  return op == "aten::_unique";
}

/// Tells whether the CPU's kernel of an operator writes beyond its memory if the arguments are zeros. Later
/// versions check the pivots.
inline bool breaks_on_zeros(std::string_view op) {
  return op == "aten::linalg_ldl_solve";
}

/// Holds types that the lists of autocast_mode.h write without their namespace, beside those that all
/// versions have in their lists.
namespace autocast_names {
using at::DimnameList;
}

/// Holds the factor of PREMUL_SUM.
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;

/// Declares the virtuals that newer versions of c10d::Backend::Options have. This torch calls none of them.
struct BackendOptions : c10d::Backend::Options {
  using c10d::Backend::Options::Options;
  virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const = 0;
};

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
  virtual c10::intrusive_ptr<c10d::Work> gather_single(at::Tensor& output, at::Tensor& input,
                                                       const c10d::GatherOptions& options) = 0;
  virtual void addEphemeralTimeout(const std::chrono::milliseconds& time) = 0;
  virtual bool supportsAbortHooks() const = 0;
  virtual bool supportsCompletionHooks() const = 0;
  virtual void registerCompletionHook(std::int64_t id, CompletionHook hook) = 0;
  virtual void unregisterCompletionHook(std::int64_t id) = 0;
  virtual void registerAbortHook(std::int64_t id, std::function<void()> hook) = 0;
  virtual void unregisterAbortHook(std::int64_t id) = 0;
};

}  // namespace vdev::torch_version
