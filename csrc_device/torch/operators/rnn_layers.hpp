// Layers of an RNN over whole sequences, padded or packed, composed as torch composes them on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "csrc_device/torch/operators/rnn_cell.hpp"

namespace vdev {

/// Tells how layers follow each other.
struct RnnStack {
  std::int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
};

/// Returns the weights of each layer and direction. Raises c10::Error if `params` does not hold whole sets.
std::vector<RnnWeights> rnn_weights(at::TensorList params, bool has_biases, bool has_projections);

/// Raises c10::Error if a state or a parameter is on another device than `input`, in torch's words.
void check_rnn_devices(const at::Tensor& input, at::TensorList states, at::TensorList params);

/// Is the output of one layer in one direction, and its last state.
struct RnnLayerResult {
  at::Tensor output;
  RnnState state;
};

/// Runs one layer in one direction. `number` counts layers and directions, and `reverse` is whether this one
/// goes from the last step to the first.
using RnnLayer = std::function<RnnLayerResult(const at::Tensor& input, std::size_t number, bool reverse)>;

/// Runs a layer behind the other, with dropout between them. Returns the output and the last state of each
/// layer and direction.
std::pair<at::Tensor, std::vector<RnnState>> run_stack(const RnnStack& stack, const at::Tensor& input,
                                                       const RnnLayer& layer);

/// Runs all layers step by step. Returns what run_stack() returns.
/// `input` is (steps, batch, features), or the rows of a packed sequence. `batch_sizes` are then the numbers
/// of rows of each step, in int64 on the CPU, and otherwise null. `states` holds the first state of each
/// layer and direction. Raises c10::Error if the counts of layers, states and weights do not fit.
std::pair<at::Tensor, std::vector<RnnState>> run_rnn(RnnCell cell, const RnnStack& stack,
                                                     const at::Tensor& input, const at::Tensor* batch_sizes,
                                                     const std::vector<RnnState>& states,
                                                     const std::vector<RnnWeights>& weights);

}  // namespace vdev
