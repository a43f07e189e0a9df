// Operators for which torch asks CUDA in a form that it does not ask the CPU for. Used when cards pose as
// CUDA.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/linalg_lstsq.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/facts/cuda_refusals.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using at::Tensor;

// Softmax or its logarithm. On CUDA torch makes a softmax of float16 that is to be float32 one operator
// (`half_to_float`), which the CPU's kernels refuse.
template <Tensor& (*out)(Tensor&, const Tensor&, std::int64_t, bool)>
Tensor softmax(const Tensor& input, std::int64_t dim, bool half_to_float) {
  const KernelScope scope;
  const Tensor values = half_to_float ? input.to(at::kFloat) : input;
  Tensor result = at::empty(values.sizes(), values.options(), at::MemoryFormat::Contiguous);
  return out(result, values, dim, false);
}

// The gradient of softmax(): of the input's dtype, although `grad` and `output` may be float32.
template <Tensor& (*out)(Tensor&, const Tensor&, const Tensor&, std::int64_t, at::ScalarType)>
Tensor softmax_backward(const Tensor& grad, const Tensor& output, std::int64_t dim, at::ScalarType type) {
  const KernelScope scope;
  Tensor result = at::empty(grad.sizes(), grad.options(), at::MemoryFormat::Contiguous);
  return out(result, grad, output, dim, grad.scalar_type()).to(type);
}

// CUDA's kernel also counts integers, which the CPU's refuses, and gives counts of the input's dtype.
Tensor histogram(const Tensor& input, std::int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  static const auto* const refusal = cuda_refusal_of({"aten::histc", ""}, c10::DispatchKey::CPU);
  refusal->apply(c10::IValue(input));
  const KernelScope scope;
  const bool is_integral = at::isIntegralType(input.scalar_type(), /*includeBool=*/false);
  const Tensor values = is_integral ? input.to(at::kDouble) : input;
  Tensor result = at::empty({std::max<std::int64_t>(bins, 0)}, values.options());
  return at::histc_out(result, values, bins, min, max).to(input.scalar_type());
}

// CUDA has one algorithm, which gives no rank and no singular values. The CPU's default is another one.
std::tuple<Tensor, Tensor, Tensor, Tensor> least_squares(const Tensor& input, const Tensor& other,
                                                         std::optional<double> rcond,
                                                         std::optional<c10::string_view> driver) {
  TORCH_CHECK(
      !driver || *driver == "gels",
      "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA. The cards pose as CUDA: "
      "compute on the CPU");
  const KernelScope scope;
  const auto none = [&](at::ScalarType type) { return at::empty({0}, input.options().dtype(type)); };
  const auto real = c10::toRealValueType(input.scalar_type());
  Tensor solution = none(input.scalar_type()), residuals = none(real), rank = none(at::kLong),
         values = none(real);
  at::linalg_lstsq_out(solution, residuals, rank, values, input, other, rcond, "gels");
  return {solution, residuals, rank, values};
}

// The lengths are tensors, or numbers.
template <typename Lengths>
bool no_library_for_ctc_loss(const Tensor&, const Tensor&, Lengths, Lengths, std::int64_t) {
  return false;
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  if (pose() == Pose::cuda) {
    m.impl("_softmax", &softmax<&at::_softmax_out>);
    m.impl("_softmax_backward_data", &softmax_backward<&at::_softmax_backward_data_out>);
    m.impl("_log_softmax", &softmax<&at::_log_softmax_out>);
    m.impl("_log_softmax_backward_data", &softmax_backward<&at::_log_softmax_backward_data_out>);
    m.impl("histc", &histogram);
    m.impl("linalg_lstsq", &least_squares);
    m.impl("_use_cudnn_ctc_loss.Tensor", &no_library_for_ctc_loss<const Tensor&>);
    m.impl("_use_miopen_ctc_loss.Tensor", &no_library_for_ctc_loss<const Tensor&>);
    m.impl("_use_cudnn_ctc_loss", &no_library_for_ctc_loss<at::IntArrayRef>);
    m.impl("_use_miopen_ctc_loss", &no_library_for_ctc_loss<at::IntArrayRef>);
  }
}

}  // namespace
}  // namespace vdev
