// Tensors whose memory should have been written by a failed task, or by a task that depended on one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

#include "csrc_device/runtime/spoiled_memory.hpp"

namespace vdev {

// These functions look at addresses, so that a card's tensor and what CpuView shows of it count as the same.
// Callers check SpoiledMemory::any() first, so that none of these functions runs before a failure.

/// Returns a failure that spoils an element of the tensor, or null. For a sparse tensor, it looks at the
/// indices and values.
FailurePtr find_spoiled(const at::Tensor& tensor);
/// Raises the failure that find_spoiled() returns, if there is one.
void check_readable(const at::Tensor& tensor);
/// Makes every later reading of the tensor raise `failure`.
void spoil(const at::Tensor& tensor, const FailurePtr& failure);
/// Call this when every element of the tensor was written anew.
void renew(const at::Tensor& tensor);

/// Returns a failure that spoils an argument that `op` reads, or null; `stack` ends with the arguments.
FailurePtr find_spoiled_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
/// Returns the arguments that `op` writes.
std::vector<at::Tensor> written_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
/// Raises the failure of any argument that `op` is about to read; `stack` ends with the arguments. Returns
/// the arguments that `op` writes without reading them (out= arguments, and the target of a fill or a copy).
/// They may be read again when `op` has run.
std::vector<at::Tensor> check_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace vdev
