// What the operators of symmetric memory have in common.
#pragma once

#include <type_traits>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace vccl::symmetric {

/// Raises ValueError unless both tensors are on one device and have as many elements of one dtype.
void check_same_elements(const char* name, const at::Tensor& input, const at::Tensor& output);

/// Calls a function with the arguments of an operator, which lie on a stack.
template <auto kFunction>
void call_from_stack(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  using Pointer = c10::CompileTimeFunctionPointer<std::remove_pointer_t<decltype(kFunction)>, kFunction>;
  using Functor = typename c10::impl::WrapFunctionIntoFunctor<Pointer>::type;
  Functor functor;
  c10::impl::make_boxed_from_unboxed_functor<Functor, false>::call(&functor, op, keys, stack);
}

/// Makes a kernel that does not tell torch the C++ types of its parameters. A torch that was built with CUDA
/// has kernels of its own for these operators, and refuses others whose types differ, if only by a reference.
template <auto kFunction>
torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&call_from_stack<kFunction>>();
}

}  // namespace vccl::symmetric
