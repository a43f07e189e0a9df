// torch's dtypes and reductions as the collectives'.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// Raises NotImplementedError naming the dtype and `operation`.
Dtype to_dtype(c10::ScalarType type, const char* operation);

/// Raises NotImplementedError when `operation` has no such reduction, or the reduction has no meaning for the
/// dtype.
ReduceOp to_reduce_op(const c10d::ReduceOp& op, Dtype dtype, const char* operation);

}  // namespace vccl
