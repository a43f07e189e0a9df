// What a user may choose for a group.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace vccl {

/// torch.distributed hands these over as `pg_options`. Copyable: split_group copies the parent's.
struct Options : c10d::Backend::Options {
  explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : c10d::Backend::Options("vccl", timeout) {}

  /// The communicator's stream is one of high priority, as ProcessGroupNCCL.Options has it.
  bool is_high_priority_stream = false;

  c10::intrusive_ptr<Options> copy() const { return c10::make_intrusive<Options>(*this); }
};

}  // namespace vccl
