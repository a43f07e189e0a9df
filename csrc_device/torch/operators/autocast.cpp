// Autocast for vdev, with CUDA's lists of operators: those that run in the lower precision, in float32, and
// in the widest type.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"
#include "csrc_device/torch/torch_version.hpp"

namespace vdev {
namespace {

// The lists of autocast_mode.h write signatures with these names.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;
using namespace torch_version::autocast_names;

at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       std::int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which do the "
      "sigmoid in the same step and are safe to autocast.");
}

// Operators on no list run in the dtypes that they are given.
VDEV_LIBRARY_IMPL(_, autocast_key(), m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

VDEV_LIBRARY_IMPL(aten, autocast_key(), m) {
#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FLOAT32_AS_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FLOAT32_AS_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
  m.impl("binary_cross_entropy", &binary_cross_entropy_banned);
}

}  // namespace
}  // namespace vdev
