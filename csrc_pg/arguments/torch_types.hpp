// Translates torch's dtypes and reductions into those of the collectives.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc_pg/collectives/dtype.hpp"
#include "csrc_pg/collectives/reduce_op.hpp"

namespace vccl {

/// Returns the dtype. Raises NotImplementedError, which names the dtype and `operation`, for quantized and
/// packed dtypes.
Dtype to_dtype(c10::ScalarType type, const char* operation);

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
