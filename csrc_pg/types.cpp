#include "csrc_pg/types.hpp"

#include <c10/util/Exception.h>

#include "csrc_pg/collectives/call.hpp"
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
    case c10::ScalarType::Float8_e4m3fn:
      return Dtype::float8_e4m3fn;
    case c10::ScalarType::Float8_e5m2:
      return Dtype::float8_e5m2;
    case c10::ScalarType::Float8_e4m3fnuz:
      return Dtype::float8_e4m3fnuz;
    case c10::ScalarType::Float8_e5m2fnuz:
      return Dtype::float8_e5m2fnuz;
    case c10::ScalarType::Float8_e8m0fnu:
      return Dtype::float8_e8m0fnu;
    case c10::ScalarType::ComplexFloat:
      return Dtype::complex64;
    case c10::ScalarType::ComplexDouble:
      return Dtype::complex128;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "Backend vccl does not support ", operation, " of ",
                                  c10::toString(type), " tensors; view() them as uint8");
  }
}

namespace {

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
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::premul_sum;
    default:
      TORCH_CHECK_VALUE(false, operation, ": ", static_cast<int>(op.op_), " is no reduction");
  }
}

}  // namespace

ReduceOp to_reduce_op(const c10d::ReduceOp& op, Dtype dtype, const char* operation) {
  const ReduceOp result = translated(op, operation);
  TORCH_CHECK_TYPE(find_reduction(dtype, result) != nullptr, operation, ": backend vccl has no ",
                   to_string(result), " of ", to_string(dtype),
                   " tensors: ", why_no_reduction(dtype, result));
  return result;
}

Factor factor_of(const c10d::ReduceOp& op, c10::Device device, const char* operation) {
  const auto* premul = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(premul, operation,
                    ": PREMUL_SUM without a factor; torch.distributed._make_nccl_premul_sum() gives it one");
  const auto& tensor = premul->tensor_factor;
  if (!tensor.defined()) return {premul->double_factor, {}};
  TORCH_CHECK_VALUE(tensor.numel() == 1, operation, ": the factor of PREMUL_SUM has ", tensor.numel(),
                    " elements");
  TORCH_CHECK_TYPE(!tensor.is_complex(), operation, ": the factor of PREMUL_SUM is complex");
  if (tensor.device().is_cpu()) return {tensor.item().toDouble(), {}};
  TORCH_CHECK_VALUE(tensor.device() == device, operation, ": the factor of PREMUL_SUM is on ",
                    tensor.device(), ", and the tensors are on ", device);
  return {1, tensor};
}

}  // namespace vccl
