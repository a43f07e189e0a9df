#include "csrc_device/torch/kernels/kernel_call.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace vdev {
namespace {

using at::ScalarType;

// Returns whether the processor has instructions for products of bfloat16. Without them, torch's kernels take
// several times as long as for float32.
bool multiplies_bfloat16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return true;
#endif
}

std::optional<ScalarType> wider(const c10::IValue& argument, InFloat32 types) {
  if (!argument.isTensor() || !argument.toTensor().defined()) return std::nullopt;
  const auto type = argument.toTensor().scalar_type();
  if (type == at::kComplexHalf && types.half) return at::kComplexFloat;
  const bool is_wanted = (type == at::kHalf && types.half) || (type == at::kBFloat16 && types.bfloat16);
  return is_wanted ? std::optional(at::kFloat) : std::nullopt;
}

// `type` is that of the arguments that were widened: float16 or bfloat16.
void narrow(c10::IValue& result, ScalarType type) {
  if (!result.isTensor() || !result.toTensor().defined()) return;
  const auto& tensor = result.toTensor();
  if (tensor.scalar_type() == at::kFloat)
    result = tensor.to(type == at::kBFloat16 ? at::kBFloat16 : at::kHalf);
  else if (tensor.scalar_type() == at::kComplexFloat)
    result = tensor.to(at::kComplexHalf);
}

// Returns whether the kernel is to see wider copies. Arguments of several dtypes are an error, which the
// kernel would not find in the copies.
bool is_widened(c10::ArrayRef<c10::IValue> arguments, InFloat32 types) {
  bool has_wider = false, has_others = false, has_bfloat16 = false, has_half = false;
  for (const auto& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const auto type = argument.toTensor().scalar_type();
    if (!c10::isFloatingType(type) && !c10::isComplexType(type)) continue;
    const bool is_wider = wider(argument, types).has_value();
    has_wider |= is_wider;
    has_others |= !is_wider;
    (type == at::kBFloat16 ? has_bfloat16 : has_half) = true;
  }
  return has_wider && !has_others && !(has_bfloat16 && has_half);
}

// Rounds what the kernel has written. A result that is a written argument is the caller's tensor.
void write_back(const at::Tensor& original, const at::Tensor& widened, torch::jit::Stack& stack,
                std::size_t first_result) {
  if (!original.sizes().equals(widened.sizes())) original.resize_(widened.sizes());
  original.copy_(widened);
  for (std::size_t i = first_result; i < stack.size(); ++i)
    if (stack[i].isTensor() && stack[i].toTensor().is_same(widened)) stack[i] = original;
}

void run_widened(const c10::OperatorHandle& op, c10::DispatchKey key, InFloat32 types,
                 torch::jit::Stack& stack) {
  struct Written {
    at::Tensor original, widened;
  };
  const auto& schema = op.schema();
  ScalarType type = at::kHalf;
  std::vector<Written> written;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& argument = stack[stack.size() - schema.arguments().size() + i];
    const auto widened = wider(argument, types);
    if (!widened) continue;
    const auto original = argument.toTensor();
    if (original.scalar_type() == at::kBFloat16) type = at::kBFloat16;
    const auto* const alias = schema.arguments()[i].alias_info();
    argument = schema.arguments()[i].is_out() ? at::empty_like(original, original.options().dtype(*widened))
                                              : original.to(*widened);
    if (alias && alias->isWrite()) written.push_back({original, argument.toTensor()});
  }
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  const std::size_t first = stack.size() - schema.returns().size();
  for (const auto& [original, widened] : written) write_back(original, widened, stack, first);
  for (std::size_t i = first; i < stack.size(); ++i) narrow(stack[i], type);
}

}  // namespace

InFloat32 in_float32(const c10::OperatorName& op) {
  static const std::unordered_set<std::string> products{"aten::mm",          "aten::addmm",
                                                        "aten::bmm",         "aten::baddbmm",
                                                        "aten::convolution", "aten::convolution_backward"};
  static const std::unordered_set<std::string> transforms{"aten::_fft_r2c", "aten::_fft_c2c",
                                                          "aten::_fft_c2r"};
  static const std::unordered_set<std::string> others{
      "aten::avg_pool3d",
      "aten::avg_pool3d_backward",
      "aten::_upsample_bilinear2d_aa",
      "aten::_upsample_bilinear2d_aa_backward",
      "aten::_upsample_bicubic2d_aa",
      "aten::_upsample_bicubic2d_aa_backward",
      "aten::multi_margin_loss",
      "aten::multi_margin_loss_backward",
      "aten::multilabel_margin_loss_forward",
      "aten::multilabel_margin_loss_backward",
  };
  if (products.contains(op.name))
    return {.half = true, .bfloat16 = !multiplies_bfloat16(), .has_kernel = true};
  if (transforms.contains(op.name)) return {.half = true};
  if (others.contains(op.name)) return {.half = true, .bfloat16 = true};
  return {};
}

void run_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, InFloat32 types,
                torch::jit::Stack& stack) {
  if (!types.half || !is_widened(torch::jit::last(stack, op.schema().arguments().size()), types)) [[likely]] {
    op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
    return;
  }
  if (!types.has_kernel) return run_widened(op, key, types, stack);
  const torch::jit::Stack given(stack);
  try {
    run_widened(op, key, types, stack);
  } catch (const c10::OutOfMemoryError&) {
    stack = given;
    op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  }
}

}  // namespace vdev
