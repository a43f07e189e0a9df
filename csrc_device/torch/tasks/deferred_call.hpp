// A call of an operator that a stream runs later.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc_device/runtime/task.hpp"
#include "csrc_device/torch/device/generator.hpp"
#include "csrc_device/torch/facts/call_signature.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"

namespace vdev {

/// What a call draws from a generator, if it has one, and the number of that argument.
using ArgumentDraw = std::optional<std::pair<std::size_t, RandomDraw>>;

/// Holds a call whose results were made before it runs. It may run several times (in a graph), by one thread
/// at a time. It owns no memory of a card: what the program frees may be reused by later tasks of the stream,
/// as on CUDA.
class DeferredCall final : public TaskBody {
 public:
  /// `arguments` are what a CpuView that borrows shows.
  DeferredCall(const c10::OperatorHandle& op, c10::DispatchKey kernel, int card, KnownCallPtr known,
               torch::jit::Stack arguments, ArgumentDraw draw);

  ~DeferredCall() override;
  DeferredCall(const DeferredCall&) = delete;
  DeferredCall& operator=(const DeferredCall&) = delete;

  using Tensors = c10::SmallVector<at::Tensor, 4>;
  /// Returns new tensors of the card for the results, in the order of KnownCall::results. Call this once.
  Tensors make_results();

  /// Runs the kernel. Call this inside a task. If an argument is spoiled, the kernel does not run, and what
  /// it would have written is spoiled. What the kernel throws gets the operator's name.
  void run() override;
  /// Spoils what the operator writes: its results, and the arguments that it changes.
  void give_up(const FailurePtr& failure) override;

 private:
  using Loans = c10::SmallVector<Loan, 4>;
  void attempt(bool lend);
  void put_in_place(const torch::jit::Stack& results, const Loans& loans) const;
  at::Tensor place_of(std::size_t result) const;

  const c10::OperatorHandle op_;
  const c10::DispatchKey kernel_;
  const int card_;
  const KnownCallPtr known_;
  torch::jit::Stack arguments_;
  const ArgumentDraw draw_;
  const LaunchState state_ = LaunchState::of_launch();
  const std::string line_;             // of the program that has called, with VDEV_LAUNCH_TRACE=1
  c10::SmallVector<void*, 4> places_;  // where the results lie
};

}  // namespace vdev
