// Translates torch's dtypes, reductions and tensors into what the collectives take.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/collectives/dtype.hpp"
#include "csrc_pg/collectives/reduce_op.hpp"

namespace vccl {

/// Returns the dtype. Raises NotImplementedError, which names the dtype and `operation`, for quantized and
/// packed dtypes.
Dtype to_dtype(c10::ScalarType type, const char* operation);

/// Returns a call on chunks with the dtype and the number of elements of `chunk`, or on that buffer where the
/// collective has no chunks. The memory is still missing, and the reduction of a collective that has one.
/// `root` is for a collective that has one. Raises what to_dtype() raises.
Call call_of(Collective collective, const at::Tensor& chunk, const char* operation, std::int64_t root = -1);

/// Returns the reduction. Raises TypeError, which names both, if the reduction has no meaning for the dtype,
/// and ValueError if `op` is no reduction.
ReduceOp to_reduce_op(const c10d::ReduceOp& op, Dtype dtype, const char* operation);

/// Holds the factor of PREMUL_SUM. If the factor is a tensor on a card, it is in `on_card`, and its value is
/// known only when the card has come to it.
struct Factor {
  double value = 1;
  at::Tensor on_card;
};

/// Returns the factor of PREMUL_SUM, and reads its value if it is a tensor on the CPU. Raises ValueError for
/// a tensor on another card than `device`.
Factor factor_of(const c10d::ReduceOp& op, c10::Device device, const char* operation);

}  // namespace vccl
