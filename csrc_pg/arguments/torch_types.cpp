#include "csrc_pg/arguments/torch_types.hpp"

#include <c10/util/Exception.h>

#include "csrc_device/torch/torch_version.hpp"

namespace vccl {

#define VCCL_CHECK(dtype, name, torch, bytes, kind, Number) \
  static_assert(sizeof(c10::impl::ScalarTypeToCPPTypeT<c10::ScalarType::torch>) == bytes);
VCCL_DTYPES(VCCL_CHECK)
#undef VCCL_CHECK

Dtype to_dtype(c10::ScalarType type, const char* operation) {
  switch (type) {
#define VCCL_CASE(dtype, name, torch, bytes, kind, Number) \
  case c10::ScalarType::torch:                             \
    return Dtype::dtype;
    VCCL_DTYPES(VCCL_CASE)
#undef VCCL_CASE
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

Call call_of(Collective collective, const at::Tensor& chunk, const char* operation, std::int64_t root) {
  return {.collective = collective,
          .dtype = to_dtype(chunk.scalar_type(), operation),
          .root = static_cast<int>(root),
          .count = static_cast<std::size_t>(chunk.numel())};
}

ReduceOp to_reduce_op(const c10d::ReduceOp& op, Dtype dtype, const char* operation) {
  const ReduceOp result = translated(op, operation);
  const char* const why = why_no_reduction(dtype, result);
  TORCH_CHECK_TYPE(!why, operation, ": backend vccl has no ", to_string(result), " of ", to_string(dtype),
                   " tensors: ", why);
  return result;
}

Factor factor_of(const c10d::ReduceOp& op, c10::Device device, const char* operation) {
  const auto* premul = dynamic_cast<const vdev::torch_version::PreMulSumSupplement*>(op.supplement_.get());
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
