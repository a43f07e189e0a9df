// One step of an LSTM, a GRU or a plain RNN, with the operators that torch calls for it on the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "csrc_device/torch/operators/optional_tensor.hpp"

namespace vdev {

/// Holds the parameters of one layer and direction. The biases and the projection may be undefined.
struct RnnWeights {
  at::Tensor input;
  at::Tensor hidden;
  OptionalTensor input_bias;
  OptionalTensor hidden_bias;
  OptionalTensor projection;
};

/// Holds the hidden state, which is also a step's output, and behind it the cell state of an LSTM.
using RnnState = c10::SmallVector<at::Tensor, 2>;

/// Returns the state after a step. `input_gates` is what input_gates() returns, or the rows of it that belong
/// to the step.
using RnnCell = RnnState (*)(const at::Tensor& input_gates, const RnnState& state, const RnnWeights& weights);

/// Returns the input's part of all gates. `input` may hold one step or many.
at::Tensor input_gates(const at::Tensor& input, const RnnWeights& weights);

RnnState lstm_step(const at::Tensor& input_gates, const RnnState& state, const RnnWeights& weights);
RnnState gru_step(const at::Tensor& input_gates, const RnnState& state, const RnnWeights& weights);
RnnState tanh_step(const at::Tensor& input_gates, const RnnState& state, const RnnWeights& weights);
RnnState relu_step(const at::Tensor& input_gates, const RnnState& state, const RnnWeights& weights);

}  // namespace vdev
