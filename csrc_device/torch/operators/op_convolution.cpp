// Convolutions. For an unknown device, torch calls the two `overrideable` operators. Here they call the
// ordinary ones for the CPU, which choose between oneDNN and torch's own kernels as for any CPU tensor.
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <torch/library.h>

#include <array>

namespace vdev {
namespace {

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
                       c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  return at::_ops::convolution::call(input, weight, bias, stride, padding, dilation, transposed,
                                     output_padding, std::move(groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> output_mask) {
  std::array<c10::SymInt, 1> bias_sizes{transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  return at::_ops::convolution_backward::call(grad_output, input, weight, c10::SymIntArrayRef(bias_sizes),
                                              stride, padding, dilation, transposed, output_padding,
                                              std::move(groups), output_mask);
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace
}  // namespace vdev
