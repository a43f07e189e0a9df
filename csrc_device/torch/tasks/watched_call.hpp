// Tells the race detector of an operator's call.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "csrc_device/torch/facts/operator_facts.hpp"
#include "csrc_device/torch/kernels/touched.hpp"
#include "csrc_device/torch/races/watch.hpp"

namespace vdev {

/// Follows one call on `card`: what it reads and writes of its arguments, and its results, whose memory the
/// call allocates. A call that raises has touched nothing. Make one only while races::is_on().
class WatchedCall {
 public:
  WatchedCall(const OperatorFacts& facts, int card, c10::ArrayRef<c10::IValue> arguments);
  /// Call this with the results at the end of `stack`.
  void returned(const torch::jit::Stack& stack);

 private:
  const OperatorFacts& facts_;
  const int card_;
  const races::CallScope scope_;
  races::Tensors tensors_;
  std::vector<at::Tensor> outs_;  // which get their size, and perhaps other memory, within the call
  const bool waits_;              // the host waits for elements, on a GPU too
};

}  // namespace vdev
