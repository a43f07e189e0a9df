#include "csrc_device/torch/operators/rnn_layers.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/stack.h>

#include <algorithm>

namespace vdev {
namespace {

using at::Tensor;

RnnLayerResult padded_layer(RnnCell cell, const Tensor& input, RnnState state, const RnnWeights& weights,
                            bool reverse) {
  std::vector<Tensor> steps = input_gates(input, weights).unbind(0);
  TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
  if (reverse) std::reverse(steps.begin(), steps.end());
  for (Tensor& step : steps) {
    state = cell(step, state, weights);
    step = state[0];
  }
  if (reverse) std::reverse(steps.begin(), steps.end());
  return {at::stack(steps, 0), std::move(state)};
}

RnnState rows(const RnnState& state, std::int64_t begin, std::int64_t end) {
  RnnState part;
  for (const Tensor& tensor : state) part.push_back(tensor.narrow(0, begin, end - begin));
  return part;
}

RnnState joined(const std::vector<RnnState>& parts) {
  RnnState whole;
  for (std::size_t number = 0; number < parts[0].size(); ++number) {
    std::vector<Tensor> tensors;
    for (const RnnState& part : parts) tensors.push_back(part[number]);
    whole.push_back(at::cat(tensors, 0));
  }
  return whole;
}

// Sequences are sorted by length, the longest first, so those that have ended are the last rows of a state.
RnnLayerResult packed_layer(RnnCell cell, const Tensor& input, at::IntArrayRef batch_sizes, RnnState state,
                            const RnnWeights& weights) {
  const Tensor gates = input_gates(input, weights);
  std::vector<Tensor> outputs;
  std::vector<RnnState> ended;
  std::int64_t begin = 0;
  std::int64_t before = batch_sizes.front();
  for (const std::int64_t batch : batch_sizes) {
    const Tensor step = gates.narrow(0, begin, batch);
    begin += batch;
    if (batch < before) {
      ended.push_back(rows(state, batch, before));
      state = rows(state, 0, batch);
    }
    before = batch;
    state = cell(step, state, weights);
    outputs.push_back(state[0]);
  }
  ended.push_back(std::move(state));
  std::reverse(ended.begin(), ended.end());
  return {at::cat(outputs, 0), joined(ended)};
}

// From the last step to the first, more and more sequences take part.
RnnLayerResult packed_layer_in_reverse(RnnCell cell, const Tensor& input, at::IntArrayRef batch_sizes,
                                       const RnnState& first, const RnnWeights& weights) {
  const Tensor gates = input_gates(input, weights);
  std::vector<Tensor> outputs;
  std::int64_t end = input.size(0);
  std::int64_t before = batch_sizes.back();
  RnnState state = rows(first, 0, before);
  for (auto batch = batch_sizes.rbegin(); batch != batch_sizes.rend(); ++batch) {
    if (*batch > before) state = joined({state, rows(first, before, *batch)});
    const Tensor step = gates.narrow(0, end - *batch, *batch);
    end -= *batch;
    before = *batch;
    state = cell(step, state, weights);
    outputs.push_back(state[0]);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), std::move(state)};
}

at::IntArrayRef sizes_of(const Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.device().is_cpu() && batch_sizes.scalar_type() == at::kLong &&
                  batch_sizes.dim() == 1 && batch_sizes.numel() > 0 && batch_sizes.is_contiguous(),
              "batch_sizes of a packed sequence must be a contiguous 1-D int64 tensor on the CPU that is not "
              "empty, but got ",
              batch_sizes.toString(), " of shape ", batch_sizes.sizes());
  return {batch_sizes.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(batch_sizes.numel())};
}

}  // namespace

std::vector<RnnWeights> rnn_weights(at::TensorList params, bool has_biases, bool has_projections) {
  const std::size_t each = 2 + (has_biases ? 2 : 0) + (has_projections ? 1 : 0);
  TORCH_CHECK(params.size() % each == 0, "got an incorrect number of RNN parameters");
  std::vector<RnnWeights> all;
  for (std::size_t first = 0; first < params.size(); first += each) {
    RnnWeights weights{params[first], params[first + 1], {}, {}, {}};
    if (has_biases) {
      weights.input_bias = params[first + 2];
      weights.hidden_bias = params[first + 3];
    }
    if (has_projections) weights.projection = params[first + each - 1];
    all.push_back(std::move(weights));
  }
  return all;
}

void check_rnn_devices(const Tensor& input, at::TensorList states, at::TensorList params) {
  const auto check = [&input](const Tensor& other, const char* what) {
    TORCH_CHECK(!other.defined() || input.device() == other.device(), "Input and ", what,
                " tensors are not at the same device, found input tensor at ", input.device(), " and ", what,
                " tensor at ", other.device());
  };
  for (const Tensor& state : states) check(state, "hidden");
  for (const Tensor& param : params) check(param, "parameter");
}

std::pair<Tensor, std::vector<RnnState>> run_stack(const RnnStack& stack, const Tensor& input,
                                                   const RnnLayer& layer) {
  const std::size_t directions = stack.bidirectional ? 2 : 1;
  const std::size_t count = static_cast<std::size_t>(stack.layers) * directions;
  Tensor output = input;
  std::vector<RnnState> last;
  for (std::size_t number = 0; number < count; number += directions) {
    RnnLayerResult forward = layer(output, number, false);
    last.push_back(std::move(forward.state));
    if (stack.bidirectional) {
      RnnLayerResult backward = layer(output, number + 1, true);
      last.push_back(std::move(backward.state));
      output = at::cat({forward.output, backward.output}, -1);
    } else {
      output = std::move(forward.output);
    }
    if (stack.dropout != 0 && stack.train && number + directions < count) {
      output = at::dropout(output, stack.dropout, /*train=*/true);
    }
  }
  return {std::move(output), std::move(last)};
}

std::pair<Tensor, std::vector<RnnState>> run_rnn(RnnCell cell, const RnnStack& stack, const Tensor& input,
                                                 const Tensor* batch_sizes,
                                                 const std::vector<RnnState>& states,
                                                 const std::vector<RnnWeights>& weights) {
  const std::size_t count = static_cast<std::size_t>(stack.layers) * (stack.bidirectional ? 2 : 1);
  TORCH_CHECK(count == states.size(), "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(count == weights.size(), "Expected more weights in stacked_rnn");
  return run_stack(stack, input, [&](const Tensor& from, std::size_t number, bool reverse) {
    if (batch_sizes == nullptr) return padded_layer(cell, from, states[number], weights[number], reverse);
    const at::IntArrayRef sizes = sizes_of(*batch_sizes);
    return reverse ? packed_layer_in_reverse(cell, from, sizes, states[number], weights[number])
                   : packed_layer(cell, from, sizes, states[number], weights[number]);
  });
}

}  // namespace vdev
