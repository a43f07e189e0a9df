// The fused cells that torch's LSTM and GRU use on every device but the CPU, built from CPU kernels over
// whole gate matrices.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <torch/library.h>

#include <vector>

#include "csrc_device/torch/operators/optional_tensor.hpp"

namespace vdev {
namespace {

using at::Tensor;

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return given(bias) ? gates + *bias : gates;
}

// i, f, g, o: i = sigmoid, f = sigmoid, g = tanh, o = sigmoid; c' = f c + i g; h' = o tanh(c').
// The workspace holds the four activated gates, (batch, 4 hidden).
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  Tensor workspace = with_bias(hidden_gates, hidden_bias).add(with_bias(input_gates, input_bias));
  const std::vector<Tensor> gates = workspace.chunk(4, 1);
  gates[0].sigmoid_();
  gates[1].sigmoid_();
  gates[2].tanh_();
  gates[3].sigmoid_();
  Tensor cy = (gates[1] * cx).add_(gates[0] * gates[2]);
  Tensor hy = gates[3] * cy.tanh();
  return {std::move(hy), std::move(cy), std::move(workspace)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) {
    return {};
  }
  const std::vector<Tensor> gates = workspace.chunk(4, 1);
  const Tensor cell = cy.tanh();
  Tensor grad_cell = given(grad_cy) ? *grad_cy : at::Tensor();
  Tensor grad_output_gate = gates[3].new_zeros(gates[3].sizes());
  if (given(grad_hy)) {
    const Tensor through_output = at::tanh_backward(*grad_hy * gates[3], cell);
    grad_cell = grad_cell.defined() ? grad_cell + through_output : through_output;
    grad_output_gate = at::sigmoid_backward(*grad_hy * cell, gates[3]);
  }
  Tensor grad_gates = at::cat(
      {at::sigmoid_backward(grad_cell * gates[2], gates[0]), at::sigmoid_backward(grad_cell * cx, gates[1]),
       at::tanh_backward(grad_cell * gates[0], gates[2]), grad_output_gate},
      1);
  Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  return {std::move(grad_gates), grad_cell * gates[1], std::move(grad_bias)};
}

// r = sigmoid, z = sigmoid, n = tanh(i_n + r h_n); h' = n + z (h - n). The workspace holds r, z, n, h and
// h_n, (batch, 5 hidden).
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const std::vector<Tensor> input = with_bias(input_gates, input_bias).chunk(3, 1);
  const std::vector<Tensor> hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (hidden[0] + input[0]).sigmoid_();
  const Tensor update = (hidden[1] + input[1]).sigmoid_();
  const Tensor candidate = (hidden[2] * reset).add_(input[2]).tanh_();
  Tensor hy = (hx - candidate).mul_(update).add_(candidate);
  return {std::move(hy), at::cat({reset, update, candidate, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const std::vector<Tensor> saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &candidate = saved[2], &hx = saved[3],
               &hidden_new = saved[4];
  const Tensor grad_candidate = at::tanh_backward(grad_hy - grad_hy * update, candidate);
  const Tensor grad_update = at::sigmoid_backward(grad_hy * (hx - candidate), update);
  const Tensor grad_reset = at::sigmoid_backward(grad_candidate * hidden_new, reset);
  Tensor grad_input = at::cat({grad_reset, grad_update, grad_candidate}, 1);
  Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_candidate * reset}, 1);
  Tensor grad_input_bias = has_bias ? grad_input.sum(0) : Tensor();
  Tensor grad_hidden_bias = has_bias ? grad_hidden.sum(0) : Tensor();
  return {std::move(grad_input), std::move(grad_hidden), grad_hy * update, std::move(grad_input_bias),
          std::move(grad_hidden_bias)};
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace vdev
