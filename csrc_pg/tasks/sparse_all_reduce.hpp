// all_reduce of sparse tensors.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc_pg/tasks/collective_plan.hpp"

namespace vccl {

/// Returns the reduction that `op` names. Raises ValueError for an undefined tensor. Raises
/// NotImplementedError for any tensor but COO tensors of the CPU or a card, and for dtypes and reductions
/// that sparse tensors do not support.
ReduceOp check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation);

/// Returns a function that replaces `tensor`, which has passed check_sparse(), by the coalesced sum or mean
/// over all ranks. Ranks may have different numbers of elements and different indices. They need equal shapes
/// and equal numbers of sparse dimensions; the function checks this when it runs.
///
/// For a tensor of a card, `stream` is the communicator's stream, which the result's memory is allocated for.
/// The tensor has the result once the operation has ended, and the caller's current stream may then use it.
///
/// The ranks first exchange how many elements they have, and then gather indices and values, because no rank
/// knows beforehand how long the result is.
CollectivePlan::Body sparse_all_reduce(const at::Tensor& tensor, ReduceOp reduction,
                                       const std::optional<c10::Stream>& stream, const char* operation);

}  // namespace vccl
