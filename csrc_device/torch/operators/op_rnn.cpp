// torch.lstm and its kin on cards. torch takes other ways on the CPU (oneDNN's LSTM; gates of all steps in
// one matrix product) than on any other device, and these kernels take the CPU's.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <tuple>
#include <utility>
#include <vector>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/operators/onednn_lstm.hpp"
#include "csrc_device/torch/operators/rnn_cell.hpp"
#include "csrc_device/torch/operators/rnn_layers.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using at::Tensor;
using at::TensorList;

// torch does not check this for the CPU, where oneDNN then reads beyond the end.
void check_lstm_states(TensorList states, std::int64_t layers, bool bidirectional) {
  TORCH_CHECK(states.size() == 2, "lstm expects two hidden states");
  const std::int64_t count = layers * (bidirectional ? 2 : 1);
  for (std::size_t number = 0; number < 2; ++number) {
    const char* name = number == 0 ? "h_0" : "c_0";
    TORCH_CHECK(states[number].dim() == 3, "For batched 3-D input, hx[", number, "] (", name,
                ") should be 3-D but got ", states[number].dim(), "-D tensor");
    TORCH_CHECK(states[number].sym_size(0) == count, "Expected ", name, " size(0) to be ", count,
                " (num_layers * num_directions), but got ", states[number].sym_size(0));
  }
}

// Returns a tensor for each part of the states, such as that of all hidden states.
std::vector<Tensor> stacked(const std::vector<RnnState>& states) {
  std::vector<Tensor> parts;
  for (std::size_t part = 0; part < states[0].size(); ++part) {
    std::vector<Tensor> tensors;
    for (const RnnState& state : states) tensors.push_back(state[part]);
    parts.push_back(at::stack(tensors, 0));
  }
  return parts;
}

// `states` holds a tensor for each part of a state. Returns the output, and a tensor for each part again.
std::pair<Tensor, std::vector<Tensor>> run_layers(RnnCell cell, const RnnStack& stack, const Tensor& input,
                                                  const Tensor* batch_sizes, TensorList states,
                                                  TensorList params, bool has_biases) {
  std::vector<std::vector<Tensor>> parts;
  for (const Tensor& state : states) parts.push_back(state.unbind(0));
  std::vector<RnnState> first(parts[0].size());
  for (const std::vector<Tensor>& part : parts) {
    for (std::size_t number = 0; number < first.size(); ++number) first[number].push_back(part[number]);
  }
  const bool has_projections = states.size() == 2 && states[0].sym_size(2) != states[1].sym_size(2);
  const std::vector<RnnWeights> weights = rnn_weights(params, has_biases, has_projections);
  auto [output, last] = run_rnn(cell, stack, input, batch_sizes, first, weights);
  return {std::move(output), stacked(last)};
}

std::tuple<Tensor, Tensor, Tensor> padded_lstm(const Tensor& input, TensorList states, TensorList params,
                                               bool has_biases, std::int64_t layers, double dropout,
                                               bool train, bool bidirectional, bool batch_first) {
  check_lstm_states(states, layers, bidirectional);
  const RnnStack stack{layers, dropout, train, bidirectional};
  check_rnn_devices(input, states, params);
  const bool fused = takes_onednn_lstm(input, states);
  const Tensor steps = batch_first ? input.transpose(0, 1) : input;
  Tensor output;
  std::vector<Tensor> last;
  if (fused) {
    auto [result, states_of_layers] = onednn_lstm(stack, steps, states, params, has_biases, batch_first);
    output = std::move(result);
    last = stacked(states_of_layers);
  } else {
    std::tie(output, last) = run_layers(&lstm_step, stack, steps, nullptr, states, params, has_biases);
  }
  return {batch_first ? output.transpose(0, 1) : output, std::move(last[0]), std::move(last[1])};
}

std::tuple<Tensor, Tensor, Tensor> packed_lstm(const Tensor& data, const Tensor& batch_sizes,
                                               TensorList states, TensorList params, bool has_biases,
                                               std::int64_t layers, double dropout, bool train,
                                               bool bidirectional) {
  check_lstm_states(states, layers, bidirectional);
  const RnnStack stack{layers, dropout, train, bidirectional};
  auto [output, last] = run_layers(&lstm_step, stack, data, &batch_sizes, states, params, has_biases);
  return {std::move(output), std::move(last[0]), std::move(last[1])};
}

template <RnnCell cell>
std::tuple<Tensor, Tensor> padded(const Tensor& input, const Tensor& state, TensorList params,
                                  bool has_biases, std::int64_t layers, double dropout, bool train,
                                  bool bidirectional, bool batch_first) {
  check_rnn_devices(input, state, params);
  const RnnStack stack{layers, dropout, train, bidirectional};
  const Tensor steps = batch_first ? input.transpose(0, 1) : input;
  auto [output, last] = run_layers(cell, stack, steps, nullptr, state, params, has_biases);
  return {batch_first ? output.transpose(0, 1) : output, std::move(last[0])};
}

template <RnnCell cell>
std::tuple<Tensor, Tensor> packed(const Tensor& data, const Tensor& batch_sizes, const Tensor& state,
                                  TensorList params, bool has_biases, std::int64_t layers, double dropout,
                                  bool train, bool bidirectional) {
  const RnnStack stack{layers, dropout, train, bidirectional};
  auto [output, last] = run_layers(cell, stack, data, &batch_sizes, state, params, has_biases);
  return {std::move(output), std::move(last[0])};
}

// The checks of torch.lstm_cell and torch.gru_cell. A weight has the rows of `gates` gates.
void check_cell(const Tensor& input, TensorList states, const RnnWeights& weights, std::int64_t gates) {
  const auto size = weights.hidden.sym_size(1);
  TORCH_CHECK(input.sym_size(1) == weights.input.sym_size(1), "input has inconsistent input_size: got ",
              input.sym_size(1), " expected ", weights.input.sym_size(1));
  for (const Tensor* weight : {&weights.input, &weights.hidden}) {
    TORCH_CHECK(weight->sym_size(0) == gates * size, weight == &weights.input ? "weight_ih" : "weight_hh",
                " first dim must be ", gates, " * hidden_size = ", gates * size, ", but got ",
                weight->sym_size(0));
  }
  for (std::size_t number = 0; number < states.size(); ++number) {
    TORCH_CHECK(input.sym_size(0) == states[number].sym_size(0), "Input batch size ", input.sym_size(0),
                " doesn't match hidden", number, " batch size ", states[number].sym_size(0));
    TORCH_CHECK(states[number].sym_size(1) == size, "hidden", number, " has inconsistent hidden_size: got ",
                states[number].sym_size(1), ", expected ", size);
  }
}

std::tuple<Tensor, Tensor> lstm_cell(const Tensor& input, TensorList states, const Tensor& input_weight,
                                     const Tensor& hidden_weight, const OptionalTensor& input_bias,
                                     const OptionalTensor& hidden_bias) {
  TORCH_CHECK(states.size() == 2, "lstm_cell expects two hidden states");
  const RnnWeights weights{input_weight, hidden_weight, input_bias, hidden_bias, {}};
  check_cell(input, states, weights, 4);
  RnnState next = lstm_step(input_gates(input, weights), {states[0], states[1]}, weights);
  return {std::move(next[0]), std::move(next[1])};
}

Tensor gru_cell(const Tensor& input, const Tensor& state, const Tensor& input_weight,
                const Tensor& hidden_weight, const OptionalTensor& input_bias,
                const OptionalTensor& hidden_bias) {
  const RnnWeights weights{input_weight, hidden_weight, input_bias, hidden_bias, {}};
  check_cell(input, state, weights, 3);
  return gru_step(input_gates(input, weights), {state}, weights)[0];
}

bool autocasts_to_float16() {
  return at::autocast::is_autocast_enabled(device_type()) &&
         at::autocast::get_autocast_dtype(device_type()) == at::kHalf;
}

// Calls a kernel of layers. Under autocast to float16 it is given everything in float16, as CUDA gives it to
// cuDNN. Otherwise the states of steps would be float32, and so would the results. Under autocast to another
// dtype the results are those of the CPU, which has no autocast to float16 for them.
template <auto kernel>
struct Layers;
template <class Result, class... Arguments, Result (*kernel)(Arguments...)>
struct Layers<kernel> {
  static Result call(Arguments... arguments) {
    if (!autocasts_to_float16()) return kernel(arguments...);
    return kernel(at::autocast::cached_cast(at::kHalf, arguments, device_type())...);
  }
};

void register_rnns(torch::Library& m) {
  m.impl("lstm.input", &Layers<&padded_lstm>::call);
  m.impl("lstm.data", &Layers<&packed_lstm>::call);
  m.impl("gru.input", &Layers<&padded<&gru_step>>::call);
  m.impl("gru.data", &Layers<&packed<&gru_step>>::call);
  m.impl("rnn_tanh.input", &Layers<&padded<&tanh_step>>::call);
  m.impl("rnn_tanh.data", &Layers<&packed<&tanh_step>>::call);
  m.impl("rnn_relu.input", &Layers<&padded<&relu_step>>::call);
  m.impl("rnn_relu.data", &Layers<&packed<&relu_step>>::call);
  m.impl("lstm_cell", &lstm_cell);
  m.impl("gru_cell", &gru_cell);
}

// These operators are compositions, which autograd looks into. So they stand under its key too.
VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  register_rnns(m);
}

VDEV_LIBRARY_IMPL(aten, autograd_key(), m) {
  register_rnns(m);
}

}  // namespace
}  // namespace vdev
