// The operators of SyncBatchNorm, between which it exchanges statistics. torch has them only for CUDA.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>
#include <torch/library.h>

#include <vector>

#include "csrc_device/torch/operators/optional_tensor.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using at::Tensor;

// Returns the type of the statistics. Those of narrow floats are kept in float32, as on CUDA.
at::ScalarType statistics_type(const Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns every dimension but the channels'.
std::vector<std::int64_t> reduced_dimensions(const Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) {
    dimensions.push_back(i);
  }
  return dimensions;
}

// Returns a tensor with one value for each channel, shaped to be combined with `input`.
Tensor by_channel(const Tensor& values, const Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(statistics_type(input)).view(shape);
}

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  auto [variance, mean] = at::var_mean(input.to(statistics_type(input)), reduced_dimensions(input),
                                       /*correction=*/0, /*keepdim=*/false);
  return {std::move(mean), variance.add_(eps).rsqrt_()};
}

// Combines the statistics of several ranks, (ranks, channels) each: the mean of the means, weighted by count,
// and the variance about it.
std::tuple<Tensor, Tensor> gather_stats_with_counts(const Tensor& input, const Tensor& mean,
                                                    const Tensor& invstd, const OptionalTensor& running_mean,
                                                    const OptionalTensor& running_var, double momentum,
                                                    double eps, const Tensor& counts) {
  const at::ScalarType type = statistics_type(input);
  const Tensor weights = counts.to(type).view({-1, 1});
  const Tensor total = weights.sum();
  const Tensor means = mean.to(type);
  const Tensor variances = invstd.to(type).pow(-2).sub(eps);
  Tensor all_mean = (means * weights).sum(0).div_(total);
  const Tensor squares = ((variances + (means - all_mean).square()) * weights).sum(0);
  Tensor all_invstd = (squares / total).add_(eps).rsqrt_();
  if (given(running_mean)) {
    running_mean->mul_(1 - momentum).add_(all_mean, momentum);
  }
  if (given(running_var)) {
    running_var->mul_(1 - momentum).add_(squares / (total - 1), momentum);
  }
  return {std::move(all_mean), std::move(all_invstd)};
}

std::tuple<Tensor, Tensor> gather_stats(const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                        const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                        double momentum, double eps, std::int64_t count) {
  const Tensor counts = at::full({mean.size(0)}, count, mean.options().dtype(statistics_type(input)));
  return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

Tensor elemt(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
             const Tensor& mean, const Tensor& invstd, double) {
  Tensor result = (input - by_channel(mean, input)) * by_channel(invstd, input);
  if (given(weight)) {
    result.mul_(by_channel(*weight, input));
  }
  if (given(bias)) {
    result.add_(by_channel(*bias, input));
  }
  return result.to(input.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad_out, const Tensor& input,
                                                           const Tensor& mean, const Tensor& invstd,
                                                           const OptionalTensor& weight, bool input_g,
                                                           bool weight_g, bool bias_g) {
  const auto dimensions = reduced_dimensions(input);
  const Tensor grad = grad_out.to(statistics_type(input));
  const Tensor sum_dy = grad.sum(dimensions);
  const Tensor sum_dy_xmu = (grad * (input - by_channel(mean, input))).sum(dimensions);
  const at::ScalarType parameter_type = given(weight) ? weight->scalar_type() : sum_dy.scalar_type();
  return {input_g ? sum_dy : Tensor(), input_g ? sum_dy_xmu : Tensor(),
          weight_g ? (sum_dy_xmu * invstd).to(parameter_type) : Tensor(),
          bias_g ? sum_dy.clone().to(parameter_type) : Tensor()};
}

Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                      const OptionalTensor& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu,
                      const Tensor& count) {
  const Tensor total = count.sum().to(statistics_type(input));
  const Tensor mean_dy = by_channel(sum_dy / total, input);
  const Tensor slope = by_channel(sum_dy_xmu / total * invstd.square(), input);
  Tensor result = (grad_out - mean_dy) - (input - by_channel(mean, input)) * slope;
  result.mul_(by_channel(invstd, input));
  if (given(weight)) {
    result.mul_(by_channel(*weight, input));
  }
  return result.to(input.scalar_type());
}

VDEV_LIBRARY_IMPL(aten, c10::DispatchKey::CPU, m) {
  m.impl("batch_norm_stats", &stats);
  m.impl("batch_norm_gather_stats", &gather_stats);
  m.impl("batch_norm_gather_stats_with_counts", &gather_stats_with_counts);
  m.impl("batch_norm_elemt", &elemt);
  m.impl("batch_norm_backward_reduce", &backward_reduce);
  m.impl("batch_norm_backward_elemt", &backward_elemt);
}

}  // namespace
}  // namespace vdev
