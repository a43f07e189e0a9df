// The options that a user may choose for a group.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "csrc_device/torch/torch_version.hpp"
#include "csrc_pg/handles/after_failure.hpp"
#include "transport/variables.hpp"

namespace vccl {

/// Whose backend a group stands for in pose.
enum class StandsFor {
  vccl,  // nobody's but its own
  nccl,  // if VCCL_STRICT says nothing else, the group refuses what NCCL refuses
  gloo,  // for the cards alone: it sends no messages, and VCCL_STRICT does not concern it
};

/// Whether such a group refuses what NCCL refuses. Throws what read_strict() throws.
inline bool is_strict_for(StandsFor stands_for) {
  return stands_for != StandsFor::gloo && read_strict(stands_for == StandsFor::nccl);
}

/// Holds the options that torch.distributed passes as `pg_options`. Copyable, because split_group copies the
/// parent's options.
struct Options : vdev::torch_version::BackendOptions {
  explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : vdev::torch_version::BackendOptions("vccl", timeout) {}

  /// Gives the communicator's stream high priority, as in ProcessGroupNCCL.Options.
  bool is_high_priority_stream = false;

  /// Makes wait(), and calls without a Work, block the host until the operation on cards has ended, so that
  /// they raise its error. ProcessGroupNCCL does this under TORCH_NCCL_BLOCKING_WAIT.
  bool blocking_wait = false;

  /// A group that is made from another one takes this from there.
  StandsFor stands_for = StandsFor::vccl;

  /// What happens, beside the error, when an operation fails.
  AfterFailure after_failure;

  /// The call that makes the group, for example "new_group". Ranks that meet compare it.
  std::string call = "ProcessGroupVccl";

  /// ProcessGroupVccl::id() of the group that all ranks of this group are in, or an empty text. The ranks of
  /// another job that uses the same store meet elsewhere in it.
  std::string origin;

  /// What the bindings keep with the options: fields that exist in Python alone. Copies share it.
  std::shared_ptr<void> extras;

  c10::intrusive_ptr<Options> copy() const { return c10::make_intrusive<Options>(*this); }
  /// Does the same, for torch.
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override { return copy(); }
};

}  // namespace vccl
