// Dropout. torch's CPU kernel for native_dropout has no generator argument and would draw from the CPU's
// global generator.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/generator.hpp"
#include "csrc_device/torch/operators/cpu_view.hpp"
#include "csrc_device/torch/operators/launch.hpp"

namespace vdev {
namespace {

constexpr std::int64_t grain = 32768;

// Returns input * mask * scale, computed in one pass without first widening the mask to the input's dtype.
// All tensors are CPU tensors.
at::Tensor apply_mask(const at::Tensor& input, const at::Tensor& mask, double scale) {
  if (!input.is_floating_point()) {
    return input * mask * scale;
  }
  const at::Tensor values = input.contiguous();
  const at::Tensor kept = mask.contiguous();
  at::Tensor output = at::empty_like(values);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "vdev_dropout", [&] {
    using wide = at::opmath_type<scalar_t>;
    const scalar_t* from = values.const_data_ptr<scalar_t>();
    const bool* keep = kept.const_data_ptr<bool>();
    scalar_t* to = output.mutable_data_ptr<scalar_t>();
    const wide factor = static_cast<wide>(scale);
    at::parallel_for(0, values.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<scalar_t>(static_cast<wide>(from[i]) * (static_cast<wide>(keep[i]) * factor));
      }
    });
  });
  return output;
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  const int card = card_of_tensor(input);
  CpuView view(card);
  const at::Tensor shown = view.show(input);
  at::Tensor output;
  at::Tensor mask;
  launch_and_wait(card, {&shown}, {}, [&] {
    const auto mask_options = shown.options().dtype(at::kBool);
    if (!train.value_or(true)) {
      mask = at::ones(shown.sizes(), mask_options);
      output = shown.clone();
      return;
    }
    mask = at::empty(shown.sizes(), mask_options);
    mask.bernoulli_(1 - p, cpu_generator_for(std::nullopt, card, shown.numel()));
    output = apply_mask(shown, mask, p == 1 ? 0.0 : 1 / (1 - p));
  });
  return {view.adopt(output), view.adopt(mask)};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  const int card = card_of_tensor(grad);
  CpuView view(card);
  const at::Tensor shown_grad = view.show(grad);
  const at::Tensor shown_mask = view.show(mask);
  at::Tensor result;
  launch_and_wait(card, {&shown_grad, &shown_mask}, {},
                  [&] { result = apply_mask(shown_grad, shown_mask, scale); });
  return view.adopt(result);
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
}

}  // namespace
}  // namespace vdev
