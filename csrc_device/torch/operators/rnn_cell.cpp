// torch computes the cells in this way on the CPU alone, and calls fused operators on every other device. So
// that a card gets the CPU's results to the last bit, these steps have the same operators in the same order,
// and in place where the CPU's are: autograd adds up gradients in the order in which nodes were made.
#include "csrc_device/torch/operators/rnn_cell.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>

#include <vector>

namespace vdev {
namespace {

using at::Tensor;

Tensor hidden_gates(const Tensor& hidden, const RnnWeights& weights) {
  return at::linear(hidden, weights.hidden, weights.hidden_bias);
}

}  // namespace

Tensor input_gates(const Tensor& input, const RnnWeights& weights) {
  return at::linear(input, weights.input, weights.input_bias);
}

RnnState lstm_step(const Tensor& input_gates, const RnnState& state, const RnnWeights& weights) {
  const std::vector<Tensor> gates =
      hidden_gates(state[0], weights).add_(input_gates).unsafe_chunk(4, /*dim=*/1);
  const Tensor in = gates[0].sigmoid_();
  const Tensor forget = gates[1].sigmoid_();
  const Tensor candidate = gates[2].tanh_();
  const Tensor out = gates[3].sigmoid_();
  Tensor cell = (forget * state[1]).add_(in * candidate);
  Tensor hidden = out * cell.tanh();
  if (given(weights.projection)) hidden = at::matmul(hidden, weights.projection->t());
  return {std::move(hidden), std::move(cell)};
}

RnnState gru_step(const Tensor& input_gates, const RnnState& state, const RnnWeights& weights) {
  const std::vector<Tensor> of_input = input_gates.unsafe_chunk(3, /*dim=*/1);
  const std::vector<Tensor> of_hidden = hidden_gates(state[0], weights).unsafe_chunk(3, /*dim=*/1);
  const Tensor reset = of_hidden[0].add_(of_input[0]).sigmoid_();
  const Tensor update = of_hidden[1].add_(of_input[1]).sigmoid_();
  const Tensor candidate = of_input[2].add(of_hidden[2].mul_(reset)).tanh_();
  return {(state[0] - candidate).mul_(update).add_(candidate)};
}

RnnState tanh_step(const Tensor& input_gates, const RnnState& state, const RnnWeights& weights) {
  return {at::tanh(hidden_gates(state[0], weights).add_(input_gates))};
}

RnnState relu_step(const Tensor& input_gates, const RnnState& state, const RnnWeights& weights) {
  return {at::relu(hidden_gates(state[0], weights).add_(input_gates))};
}

}  // namespace vdev
