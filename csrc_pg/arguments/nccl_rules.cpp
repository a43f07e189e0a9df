#include "csrc_pg/arguments/nccl_rules.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/torch_version.hpp"

namespace vccl {
namespace {

using c10::ScalarType;

constexpr const char* kContiguous = "Tensors must be contiguous";
constexpr const char* kCallContiguous = "call contiguous()";
constexpr int kFirstArchitectureWithFp8 = 9;  // Hopper

// NCCL has more dtypes for what it moves (as bytes) than for what it reduces.
bool nccl_moves(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float:
    case ScalarType::Double:
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e5m2fnuz:
      return true;
    default:
      return false;
  }
}

bool is_fp8_of_nccl(ScalarType type) {
  return type == ScalarType::Float8_e4m3fn || type == ScalarType::Float8_e5m2;
}

bool is_other_fp8(ScalarType type) {
  return type == ScalarType::Float8_e4m3fnuz || type == ScalarType::Float8_e5m2fnuz ||
         type == ScalarType::Float8_e8m0fnu;
}

/// Returns the dtype in which torch hands a complex tensor to NCCL.
ScalarType handed_over(const at::Tensor& tensor) {
  return tensor.is_complex() ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type();
}

std::string layout_text(const at::Tensor& tensor) {
  return base::text("a tensor of sizes ", c10::str(tensor.sizes()), " and strides ",
                    c10::str(tensor.strides()));
}

std::string dtype_text(const at::Tensor& tensor) {
  return base::text("a tensor of ", c10::toString(tensor.scalar_type()));
}

/// Returns "BAND" for a reduction that NCCL has not.
const char* missing_reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    case c10d::ReduceOp::BXOR:
      return "BXOR";
    default:
      return nullptr;
  }
}

}  // namespace

std::string NcclRules::text(std::string_view nccls, const char* operation, const std::string& found,
                            std::string_view advice) const {
  return base::text(nccls, ": ", names_.of_group(rank_), " called ", operation, found.empty() ? "" : " with ",
                    found,
                    ". This is an error on GPUs. The cards could do it, and do with VCCL_STRICT=0; to run on "
                    "GPUs, ",
                    advice, ".");
}

void NcclRules::check_contiguous(const at::Tensor& tensor, const char* operation) const {
  TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()),
                    text(kContiguous, operation, layout_text(tensor), kCallContiguous));
}

void NcclRules::check_collective_dtype(const at::Tensor& tensor, const char* operation) const {
  const auto type = handed_over(tensor);
  TORCH_CHECK_TYPE(nccl_moves(type),
                   text(base::text("Input tensor data type is not supported for NCCL process group: ",
                                   c10::toString(type)),
                        operation, dtype_text(tensor),
                        "view() the tensor as uint8 to move it, or convert it to reduce it"));
  if (!is_fp8_of_nccl(type)) return;
  const auto* profile = vdev::card(tensor.device().index()).properties().profile;
  TORCH_CHECK_WITH(
      DistBackendError, profile && profile->major >= kFirstArchitectureWithFp8,
      text("FP8 reduction support begins with sm90 capable devices", operation, dtype_text(tensor),
           "view() the tensor as uint8 to move it, or choose such a card (VDEV_PROFILE=h100-80g)"));
}

void NcclRules::check_moved(const at::Tensor& tensor, const char* operation) const {
  if (!applies_to(tensor)) return;
  check_contiguous(tensor, operation);
  check_collective_dtype(tensor, operation);
}

void NcclRules::check_exchanged(const at::Tensor& tensor, const char* operation) const {
  if (!applies_to(tensor)) return;
  check_contiguous(tensor, operation);
  TORCH_CHECK(nccl_moves(tensor.scalar_type()),
              text(base::text("Unconvertible NCCL type ", c10::toString(tensor.scalar_type())), operation,
                   dtype_text(tensor), "view() the tensor as uint8"));
}

void NcclRules::check_exchanged(const std::vector<at::Tensor>& tensors, const char* operation) const {
  if (!on_) return;
  for (const auto& tensor : tensors) check_exchanged(tensor, operation);
}

void NcclRules::check_message(const at::Tensor& tensor, const char* operation) const {
  if (!applies_to(tensor)) return;
  TORCH_CHECK_VALUE(
      tensor.is_contiguous(tensor.suggest_memory_format()) || tensor.is_non_overlapping_and_dense(),
      text("Tensors for P2P must be non-overlapping and dense", operation, layout_text(tensor),
           kCallContiguous));
  TORCH_CHECK_TYPE(nccl_moves(tensor.scalar_type()),
                   text(base::text("Input tensor data type is not supported for NCCL process group: ",
                                   c10::toString(tensor.scalar_type())),
                        operation, dtype_text(tensor),
                        "view() the tensor as uint8, or a complex one with view_as_real()"));
}

void NcclRules::check_premul_factor(const c10d::ReduceOp& op, const at::Tensor& tensor,
                                    const char* operation) const {
  const auto type = handed_over(tensor);
  const bool has_factor = type == ScalarType::Half || type == ScalarType::Float ||
                          type == ScalarType::BFloat16 || type == ScalarType::Double;
  TORCH_CHECK_TYPE(has_factor, text("PreMulSum Data type must be half, float, bfloat16 or double", operation,
                                    dtype_text(tensor), "multiply before the call"));
  const auto* premul = dynamic_cast<const vdev::torch_version::PreMulSumSupplement*>(op.supplement_.get());
  if (!premul || !premul->tensor_factor.defined()) return;
  const auto& factor = premul->tensor_factor;
  const auto expected = type == ScalarType::BFloat16 ? ScalarType::Float : type;
  TORCH_CHECK(factor.scalar_type() == expected,
              text(base::text("expected scalar type ", c10::toString(expected), " but found ",
                              c10::toString(factor.scalar_type())),
                   operation, "this factor of PREMUL_SUM", "convert the factor"));
  TORCH_CHECK_VALUE(!factor.device().is_cpu(),
                    text("The factor of PREMUL_SUM is on the CPU, where the GPU would not find it", operation,
                         "a tensor as factor", "move the factor to the card, or give it as a number"));
}

void NcclRules::check_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op,
                                const char* operation) const {
  if (!applies_to(tensor)) return;
  TORCH_CHECK(!tensor.is_complex() || c10d::isComplexViewAsRealAllowed(op),
              text(base::text(operation, " does not support this reduction on complex tensors"), operation,
                   dtype_text(tensor), "reduce real and imaginary parts by themselves"));
  TORCH_CHECK(!is_other_fp8(tensor.scalar_type()), text("Unsupported Float8 type for NCCL reduction",
                                                        operation, dtype_text(tensor), "convert the tensor"));
  check_collective_dtype(tensor, operation);
  if (const char* missing = missing_reduction(op)) {
    TORCH_CHECK_VALUE(false, text(base::text("Cannot use ReduceOp.", missing, " with NCCL"), operation,
                                  dtype_text(tensor), "gather the tensors and combine them on each rank"));
  }
  TORCH_CHECK_TYPE(tensor.scalar_type() != ScalarType::Bool || op.op_ != c10d::ReduceOp::AVG,
                   text("Cannot use ReduceOp.AVG with boolean inputs", operation, dtype_text(tensor),
                        "convert the tensor"));
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) check_premul_factor(op, tensor, operation);
}

void NcclRules::check_row_major(const at::Tensor& tensor, const char* operation) const {
  if (!applies_to(tensor)) return;
  TORCH_CHECK_VALUE(tensor.is_contiguous(),
                    text(kContiguous, operation,
                         base::text(layout_text(tensor),
                                    ", whose elements ProcessGroupNCCL would mistake or "
                                    "leave unwritten without saying so"),
                         kCallContiguous));
}

void NcclRules::check_row_major(const std::vector<at::Tensor>& tensors, const char* operation) const {
  if (!on_) return;
  for (const auto& tensor : tensors) check_row_major(tensor, operation);
}

void NcclRules::check_dense(const std::vector<at::Tensor>& tensors, const char* operation) const {
  if (!on_) return;
  for (const auto& tensor : tensors)
    TORCH_CHECK_VALUE(
        !applies_to(tensor) || tensor.is_non_overlapping_and_dense(),
        text("Tensors must be non-overlapping and dense", operation, layout_text(tensor), kCallContiguous));
}

void NcclRules::check_same_sizes(const std::vector<at::Tensor>& tensors, const at::Tensor& like,
                                 const char* operation) const {
  if (!applies_to(like)) return;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    TORCH_CHECK_VALUE(
        tensors[i].sizes() == like.sizes(),
        text(base::text("ProcessGroupNCCL::", operation, ": invalid tensor size at index ", i, " (expected ",
                        c10::str(like.sizes()), ", got ", c10::str(tensors[i].sizes()), ")"),
             operation, "", "give every tensor of the list the sizes of this rank's own"));
}

void NcclRules::refuse_unsupported(const char* method, const char* operation) const {
  TORCH_CHECK_NOT_IMPLEMENTED(!on_, text(base::text("ProcessGroupNCCL does not support ", method), operation,
                                         "", "name the rank, or use another call"));
}

void NcclRules::refuse_sparse(const char* operation) const {
  TORCH_CHECK(!on_,
              text("NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead",
                   operation, "a sparse tensor", "call to_dense()"));
}

at::Tensor NcclRules::memory_of(const at::Tensor& tensor) const {
  if (!applies_to(tensor) || tensor.is_contiguous() || !tensor.is_non_overlapping_and_dense()) return tensor;
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  return tensor.as_strided({tensor.numel()}, {1});
}

std::vector<at::Tensor> NcclRules::memory_of(const std::vector<at::Tensor>& tensors) const {
  if (!on_) return tensors;
  std::vector<at::Tensor> all;
  all.reserve(tensors.size());
  for (const auto& tensor : tensors) all.push_back(memory_of(tensor));
  return all;
}

}  // namespace vccl
