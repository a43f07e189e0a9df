// Dropout. torch's CPU kernel for native_dropout has no generator argument and would draw from the CPU's
// global generator.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

constexpr std::int64_t grain = 32768;

// Writes input * mask * scale to `output`, in one pass without first widening the mask to the input's dtype.
// All tensors are CPU tensors, and `output` and `mask` are contiguous.
void apply_mask(const at::Tensor& input, const at::Tensor& mask, double scale, const at::Tensor& output) {
  if (!input.is_floating_point()) {
    output.copy_(input * mask * scale);
    return;
  }
  const at::Tensor values = input.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, input.scalar_type(), "vdev_dropout", [&] {
    using wide = at::opmath_type<scalar_t>;
    const scalar_t* from = values.const_data_ptr<scalar_t>();
    const bool* keep = mask.const_data_ptr<bool>();
    scalar_t* to = output.mutable_data_ptr<scalar_t>();
    const wide factor = static_cast<wide>(scale);
    at::parallel_for(0, values.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<scalar_t>(static_cast<wide>(from[i]) * (static_cast<wide>(keep[i]) * factor));
      }
    });
  });
}

// The next two are operators of the CPU with the results as arguments, so that they are launched as any other
// operator.
void dropout_forward(const at::Tensor& input, double p, const std::optional<at::Generator>& generator,
                     at::Tensor& output, at::Tensor& mask) {
  mask.bernoulli_(1 - p, generator);
  apply_mask(input, mask, p == 1 ? 0.0 : 1 / (1 - p), output);
}

void dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale, at::Tensor& output) {
  apply_mask(grad, mask.contiguous(), scale, output);
}

// Returns the type of what apply_mask() computes.
at::ScalarType type_of_scaled(const at::Tensor& input) {
  return input.is_floating_point() ? input.scalar_type() : at::result_type(input, 1.0);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  static const auto forward = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("vccl::dropout_forward", "")
                                  .typed<decltype(dropout_forward)>();
  const KernelScope scope;
  const auto contiguous = at::MemoryFormat::Contiguous;
  at::Tensor mask = at::empty(input.sizes(), input.options().dtype(at::kBool), contiguous);
  if (!train.value_or(true)) return {input.clone(), mask.fill_(true)};
  at::Tensor output = at::empty(input.sizes(), input.options().dtype(type_of_scaled(input)), contiguous);
  const std::optional<at::Generator> default_one;
  forward.call(input, p, default_one, output, mask);
  return {std::move(output), std::move(mask)};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  static const auto backward = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("vccl::dropout_backward", "")
                                   .typed<decltype(dropout_backward)>();
  const KernelScope scope;
  at::Tensor output =
      at::empty(grad.sizes(), grad.options().dtype(type_of_scaled(grad)), at::MemoryFormat::Contiguous);
  backward.call(grad, mask, scale, output);
  return output;
}

VDEV_LIBRARY(vccl, m) {
  m.def(
      "dropout_forward(Tensor input, float p, Generator? generator, Tensor(a!) output, "
      "Tensor(b!) mask) -> ()");
  m.def("dropout_backward(Tensor grad, Tensor mask, float scale, Tensor(a!) output) -> ()");
}

VDEV_LIBRARY_IMPL(vccl, c10::DispatchKey::CPU, m) {
  m.impl("dropout_forward", &dropout_forward);
  m.impl("dropout_backward", &dropout_backward);
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
}

}  // namespace
}  // namespace vdev
