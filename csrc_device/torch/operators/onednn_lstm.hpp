// The LSTM of oneDNN, which torch uses on the CPU where it can.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "csrc_device/torch/operators/rnn_layers.hpp"

namespace vdev {

/// Tells whether torch would take oneDNN's LSTM if these tensors were the CPU's. `states` are h and c.
bool takes_onednn_lstm(const at::Tensor& input, at::TensorList states);

/// Returns the output, and the last h and c of each layer and direction. `input` is (steps, batch, features).
std::pair<at::Tensor, std::vector<RnnState>> onednn_lstm(const RnnStack& stack, const at::Tensor& input,
                                                         at::TensorList states, at::TensorList params,
                                                         bool has_biases, bool batch_first);

}  // namespace vdev
