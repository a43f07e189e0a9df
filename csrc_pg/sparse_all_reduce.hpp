// all_reduce of sparse tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc_pg/plan.hpp"

namespace vccl {

/// Replaces `tensor` (COO, on the CPU) by the coalesced sum over all ranks, or its mean. Ranks may have
/// different numbers of elements and different indices; they need equal shapes and numbers of sparse
/// dimensions, which is found out when it runs. Raises NotImplementedError for other tensors and reductions.
///
/// The ranks tell each other how many elements they have, and then gather indices and values: nobody can know
/// before how long the result is.
Plan::Body sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const char* operation);

}  // namespace vccl
