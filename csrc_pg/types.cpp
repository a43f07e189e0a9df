#include "csrc_pg/types.hpp"

#include <c10/util/Exception.h>

#include "csrc_pg/collectives/reduce_kernels.hpp"

namespace vccl {

Dtype to_dtype(c10::ScalarType type, const char* operation) {
  switch (type) {
    case c10::ScalarType::Bool:
      return Dtype::boolean;
    case c10::ScalarType::Char:
      return Dtype::int8;
    case c10::ScalarType::Short:
      return Dtype::int16;
    case c10::ScalarType::Int:
      return Dtype::int32;
    case c10::ScalarType::Long:
      return Dtype::int64;
    case c10::ScalarType::Byte:
      return Dtype::uint8;
    case c10::ScalarType::UInt16:
      return Dtype::uint16;
    case c10::ScalarType::UInt32:
      return Dtype::uint32;
    case c10::ScalarType::UInt64:
      return Dtype::uint64;
    case c10::ScalarType::Half:
      return Dtype::float16;
    case c10::ScalarType::BFloat16:
      return Dtype::bfloat16;
    case c10::ScalarType::Float:
      return Dtype::float32;
    case c10::ScalarType::Double:
      return Dtype::float64;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "Backend vccl does not support ", operation, " of ",
                                  c10::toString(type),
                                  " tensors: bool, the integers, float16, bfloat16, float32 and float64 are");
  }
}

namespace {

const char* name_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    case c10d::ReduceOp::BXOR:
      return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "an unknown reduction";
  }
}

ReduceOp translated(const c10d::ReduceOp& op, const char* operation) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "Backend vccl does not support ", operation, " with ",
                                  name_of(op.op_), ": SUM, AVG, PRODUCT, MIN and MAX are");
  }
}

}  // namespace

ReduceOp to_reduce_op(const c10d::ReduceOp& op, Dtype dtype, const char* operation) {
  const ReduceOp result = translated(op, operation);
  TORCH_CHECK_NOT_IMPLEMENTED(find_reduction(dtype, result) != nullptr, "Backend vccl does not support ",
                              operation, " with ", to_string(result), " of ", to_string(dtype), " tensors");
  return result;
}

}  // namespace vccl
