// An operator for the cards: the square of relu, which some transformers use in the place of GELU.
//
// docs/extending.md leads through this file.
#include <ATen/Dispatch.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <vccl/device.hpp>

#include <cstdint>
#include <utility>

namespace {

TORCH_LIBRARY(examples, m) {
  m.def("squared_relu(Tensor x) -> Tensor");
  m.def("squared_relu_backward(Tensor gradient, Tensor x) -> Tensor");
  m.def("bias_squared_relu(Tensor x, Tensor bias) -> Tensor");
}

// Without a branch, so that the compiler can use the vector unit. NaN stays NaN.
template <class T>
T square_of_positive(T x) {
  const T square = x * x;
  return x < T(0) ? T(0) : square;
}

// Runs a kernel in stream order if the tensors are on a card, and at once on the CPU.
template <class Kernel>
void launch(const char* name, at::TensorList reads, const at::Tensor& result, Kernel kernel) {
  if (result.is_cpu()) return kernel();
  vdev::launch_kernel(name, reads, {result}, std::move(kernel));
}

at::Tensor squared_relu(const at::Tensor& x) {
  const at::Tensor input = x.contiguous();
  at::Tensor result = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "squared_relu", [&] {
    const auto* from = input.const_data_ptr<scalar_t>();
    auto* to = result.mutable_data_ptr<scalar_t>();
    launch("examples::squared_relu", {input}, result, [from, to, n = input.numel()] {
      for (std::int64_t i = 0; i < n; ++i) to[i] = square_of_positive(from[i]);
    });
  });
  return result;
}

at::Tensor squared_relu_backward(const at::Tensor& gradient, const at::Tensor& x) {
  const at::Tensor outer = gradient.contiguous(), input = x.contiguous();
  at::Tensor result = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "squared_relu_backward", [&] {
    const auto* g = outer.const_data_ptr<scalar_t>();
    const auto* from = input.const_data_ptr<scalar_t>();
    auto* to = result.mutable_data_ptr<scalar_t>();
    launch("examples::squared_relu_backward", {outer, input}, result, [g, from, to, n = input.numel()] {
      for (std::int64_t i = 0; i < n; ++i) {
        const scalar_t slope = scalar_t(2) * from[i] * g[i];
        to[i] = from[i] < scalar_t(0) ? scalar_t(0) : slope;
      }
    });
  });
  return result;
}

// The sum and the function in one pass over the memory. `bias` has an element for each of the last dimension.
at::Tensor bias_squared_relu(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(x.dim() > 0 && bias.dim() == 1 && x.size(-1) == bias.size(0),
              "bias_squared_relu: the bias has size ", bias.sizes(), ", and x ", x.sizes());
  TORCH_CHECK(x.scalar_type() == bias.scalar_type(), "bias_squared_relu: x has dtype ", x.scalar_type(),
              ", and the bias ", bias.scalar_type());
  const at::Tensor input = x.contiguous(), row = bias.contiguous();
  at::Tensor result = at::empty_like(input);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "bias_squared_relu", [&] {
    const auto* from = input.const_data_ptr<scalar_t>();
    const auto* added = row.const_data_ptr<scalar_t>();
    auto* to = result.mutable_data_ptr<scalar_t>();
    launch("examples::bias_squared_relu", {input, row}, result,
           [from, added, to, n = input.numel(), width = row.numel()] {
             for (std::int64_t begin = 0; begin < n; begin += width) {
               for (std::int64_t i = 0; i < width; ++i)
                 to[begin + i] = square_of_positive(static_cast<scalar_t>(from[begin + i] + added[i]));
             }
           });
  });
  return result;
}

TORCH_LIBRARY_IMPL(examples, CPU, m) {
  m.impl("squared_relu", &squared_relu);
  m.impl("squared_relu_backward", &squared_relu_backward);
  m.impl("bias_squared_relu", &bias_squared_relu);
}

TORCH_LIBRARY_FRAGMENT(examples, m) {
  const c10::DispatchKey card = vdev::keys().kernel;
  m.impl("squared_relu", torch::dispatch(card, &squared_relu));
  m.impl("squared_relu_backward", torch::dispatch(card, &squared_relu_backward));
  m.impl("bias_squared_relu", torch::dispatch(card, &bias_squared_relu));
}

at::Tensor like_first(const at::Tensor& x) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

TORCH_LIBRARY_IMPL(examples, Meta, m) {
  m.impl("squared_relu", &like_first);
  m.impl("squared_relu_backward", [](const at::Tensor&, const at::Tensor& x) { return like_first(x); });
  m.impl("bias_squared_relu", [](const at::Tensor& x, const at::Tensor&) { return like_first(x); });
}

using OfOne = at::Tensor(const at::Tensor&);
using OfTwo = at::Tensor(const at::Tensor&, const at::Tensor&);

// Calls an operator of this file through the dispatcher.
template <class Signature, class... Tensors>
at::Tensor call(const char* name, const Tensors&... tensors) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>().call(tensors...);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class SquaredRelu : public torch::autograd::Function<SquaredRelu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x});
    return call<OfOne>("examples::squared_relu", x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {call<OfTwo>("examples::squared_relu_backward", gradients[0], context->get_saved_variables()[0])};
  }
};

class BiasSquaredRelu : public torch::autograd::Function<BiasSquaredRelu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, bias});
    return call<OfTwo>("examples::bias_squared_relu", x, bias);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor of_sum =
        call<OfTwo>("examples::squared_relu_backward", gradients[0], saved[0] + saved[1]);
    return {of_sum, of_sum.reshape({-1, of_sum.size(-1)}).sum(0)};
  }
};

TORCH_LIBRARY_IMPL(examples, Autograd, m) {
  m.impl("squared_relu", [](const at::Tensor& x) { return SquaredRelu::apply(x); });
  m.impl("bias_squared_relu",
         [](const at::Tensor& x, const at::Tensor& bias) { return BiasSquaredRelu::apply(x, bias); });
}

// Squares leave the range of float16 soon, so autocast runs these in float32.
at::Tensor in_float32(const at::Tensor& tensor) {
  return at::autocast::cached_cast(at::kFloat, tensor, tensor.device().type());
}

at::Tensor squared_relu_autocast(const at::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(vdev::keys().autocast);
  return call<OfOne>("examples::squared_relu", in_float32(x));
}

at::Tensor bias_squared_relu_autocast(const at::Tensor& x, const at::Tensor& bias) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(vdev::keys().autocast);
  return call<OfTwo>("examples::bias_squared_relu", in_float32(x), in_float32(bias));
}

TORCH_LIBRARY_FRAGMENT(examples, m) {
  const c10::DispatchKey autocast = vdev::keys().autocast;
  m.impl("squared_relu", torch::dispatch(autocast, &squared_relu_autocast));
  m.impl("bias_squared_relu", torch::dispatch(autocast, &bias_squared_relu_autocast));
}

}  // namespace
