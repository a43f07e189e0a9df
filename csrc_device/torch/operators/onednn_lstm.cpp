#include "csrc_device/torch/operators/onednn_lstm.hpp"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using at::Tensor;

constexpr std::int64_t kLstm = 2;  // of oneDNN's kinds of RNN, as aten::mkldnn_rnn_layer takes them

bool answer_of(const char* op) {
  const auto found = c10::Dispatcher::singleton().findSchema({op, ""});
  return found.has_value() && found->typed<bool()>().call();
}

// Asked when the module is loaded: later on the call could meet a dispatch mode of Python.
bool has_bfloat16 = false;
bool has_float16 = false;
const Registration onednn_registration([] {
  has_bfloat16 = answer_of("mkldnn::_is_mkldnn_bf16_supported");
  has_float16 = answer_of("mkldnn::_is_mkldnn_fp16_supported");
});

bool onednn_has(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return true;
    case at::kBFloat16:
      return has_bfloat16;
    case at::kHalf:
      return has_float16 && !c10::GradMode::is_enabled();
    default:
      return false;
  }
}

bool autocasts() {
  return at::autocast::is_autocast_enabled(device_type());
}

// The CPU's autocast has aten::mkldnn_rnn_layer on its list. The cards have CUDA's lists, which do not.
Tensor cast(const Tensor& tensor) {
  if (!autocasts()) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device_type()), tensor, device_type());
}

}  // namespace

bool takes_onednn_lstm(const Tensor& input, at::TensorList states) {
  return at::globalContext().userEnabledMkldnn() && at::hasMKLDNN() && onednn_has(input.scalar_type()) &&
         (!autocasts() || onednn_has(at::autocast::get_autocast_dtype(device_type()))) &&
         input.sym_numel() != 0 && !states[0].unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
         // With projections h and c differ in size.
         states[0].sym_size(2) == states[1].sym_size(2);
}

std::pair<Tensor, std::vector<RnnState>> onednn_lstm(const RnnStack& stack, const Tensor& input,
                                                     at::TensorList states, at::TensorList params,
                                                     bool has_biases, bool batch_first) {
  const std::vector<RnnWeights> weights = rnn_weights(params, has_biases, /*has_projections=*/false);
  const std::size_t count = static_cast<std::size_t>(stack.layers) * (stack.bidirectional ? 2 : 1);
  TORCH_CHECK(count == weights.size(), "Expected more weights in stacked_rnn");
  const Tensor hidden = states[0].contiguous();
  const Tensor cell = states[1].contiguous();
  return run_stack(stack, input.contiguous(), [&](const Tensor& from, std::size_t number, bool reverse) {
    const RnnWeights& own = weights[number];
    const auto place = static_cast<std::int64_t>(number);
    // Without biases oneDNN looks at nothing but their dtype.
    const Tensor input_bias = has_biases ? *own.input_bias : at::zeros_like(own.input);
    const Tensor hidden_bias = has_biases ? *own.hidden_bias : at::zeros_like(own.hidden);
    auto [output, last_hidden, last_cell, workspace] = at::mkldnn_rnn_layer(
        cast(from), cast(own.input), cast(own.hidden), cast(input_bias), cast(hidden_bias),
        cast(hidden[place]), cast(cell[place]), reverse, /*batch_sizes=*/{}, kLstm, states[0].size(2),
        stack.layers, has_biases, stack.bidirectional, batch_first, stack.train);
    return RnnLayerResult{std::move(output), {std::move(last_hidden), std::move(last_cell)}};
  });
}

}  // namespace vdev
