// Divisions and remainders of integers. A divisor of zero raises on the CPU. It gives some number on a GPU,
// so a program may divide first and then choose: torch.where(b != 0, a // b, 0).
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/kernels/cpu_view.hpp"
#include "csrc_device/torch/kernels/kernel_scope.hpp"
#include "csrc_device/torch/operators/op_fallback.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using at::Tensor;
using c10::IValue;

// All bits are ones, as in NVIDIA's quotients.
constexpr std::int64_t kNumberOfZero = -1;

// Returns whether CPU kernels divide numbers of this type. The other integers are only stored.
bool is_divided_integer(at::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/true) && !c10::isBarebonesUnsignedType(type);
}

bool is_integer(const IValue& number) {
  return number.isTensor() ? is_divided_integer(number.toTensor().scalar_type())
                           : number.isInt() || number.isBool();
}

// Is what the kernel divides by, without zeros, and where the zeros were: everywhere if that is undefined.
struct Divisor {
  Tensor safe, zeros;

  static Divisor of_card(const Tensor& divisor) {
    const KernelScope scope;
    const Tensor zeros = divisor.eq(0);
    return {.safe = divisor.masked_fill(zeros, 1), .zeros = zeros};
  }

  // `divisor` is a number that is zero.
  static Divisor of_zero(const Tensor& divisor) {
    const KernelScope scope;
    Tensor one = at::ones({}, divisor.options());
    one.unsafeGetTensorImpl()->set_wrapped_number(divisor.unsafeGetTensorImpl()->is_wrapped_number());
    return {.safe = std::move(one), .zeros = Tensor()};
  }

  void write_over(const Tensor& result) const {
    const KernelScope scope;
    if (zeros.defined())
      result.masked_fill_(zeros, kNumberOfZero);
    else
      result.fill_(kNumberOfZero);
  }
};

// The arguments are dividend and divisor, and in some forms the rounding mode and the result.
void divide(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  IValue* const arguments = stack->data() + (stack->size() - op.schema().arguments().size());
  const auto run = [&] { run_on_cpu_kernel_for(c10::DispatchKey::CPU, op, stack); };
  const Tensor divisor = arguments[1].toTensor();
  if (!is_integer(arguments[0]) || !is_integer(arguments[1])) return run();
  const bool on_card = card_of_tensor(divisor) >= 0;
  if (!on_card && (divisor.dim() > 0 || !divisor.device().is_cpu() || divisor.item<std::int64_t>() != 0))
    return run();
  const Divisor used = on_card ? Divisor::of_card(divisor) : Divisor::of_zero(divisor);
  arguments[1] = used.safe;
  run();
  used.write_over(stack->back().toTensor());
}

// Without a rounding mode the quotients are no integers.
void divide_in_mode(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const IValue& mode = (*stack)[stack->size() - op.schema().arguments().size() + 2];
  if (mode.isNone())
    run_on_cpu_kernel_for(c10::DispatchKey::CPU, op, stack);
  else
    divide(op, keys, stack);
}

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  for (const char* name :
       {"floor_divide", "floor_divide_.Tensor", "floor_divide.out", "remainder.Tensor", "remainder_.Tensor",
        "remainder.Tensor_out", "remainder.Scalar_Tensor", "fmod.Tensor", "fmod_.Tensor", "fmod.Tensor_out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&divide>());
  for (const char* name : {"div.Tensor_mode", "div_.Tensor_mode", "div.out_mode"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&divide_in_mode>());
}

}  // namespace
}  // namespace vdev
