// torch's dtypes and reductions as the collectives'.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// Raises NotImplementedError naming the dtype and `operation` (quantized and packed dtypes).
Dtype to_dtype(c10::ScalarType type, const char* operation);

/// Raises TypeError naming both when the reduction has no meaning for the dtype, ValueError when it is none.
ReduceOp to_reduce_op(const c10d::ReduceOp& op, Dtype dtype, const char* operation);

/// The factor of PREMUL_SUM. A tensor on a card is `on_card`: its value is known when the card has come to
/// it.
struct Factor {
  double value = 1;
  at::Tensor on_card;
};

/// A tensor on the CPU is read here. Raises ValueError for one that is on another card than `device`.
Factor factor_of(const c10d::ReduceOp& op, c10::Device device, const char* operation);

}  // namespace vccl
