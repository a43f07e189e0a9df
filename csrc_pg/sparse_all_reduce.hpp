// all_reduce of sparse tensors.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc_pg/plan.hpp"

namespace vccl {

/// The reduction that `op` names. Raises ValueError for an undefined tensor, NotImplementedError for any but
/// COO tensors of the CPU or a card, and for dtypes and reductions that there are not for them.
ReduceOp check_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation);

/// Replaces `tensor`, which has passed check_sparse(), by the coalesced sum over all ranks, or its mean.
/// Ranks may have different numbers of elements and different indices; they need equal shapes and numbers of
/// sparse dimensions, which is found out when it runs.
///
/// `stream`: for a tensor of a card, the communicator's stream, which the result's memory comes from. The
/// result is the tensor's once the operation has ended, and ordered for the caller's current stream.
///
/// The ranks tell each other how many elements they have, and then gather indices and values: nobody can know
/// before how long the result is.
Plan::Body sparse_all_reduce(const at::Tensor& tensor, ReduceOp reduction,
                             const std::optional<c10::Stream>& stream, const char* operation);

}  // namespace vccl
