#include "csrc_device/torch/kernels/kernel_call.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
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

std::optional<ScalarType> wider(const c10::IValue& argument, const InFloat32& types) {
  if (!argument.isTensor() || !argument.toTensor().defined()) return std::nullopt;
  const auto type = argument.toTensor().scalar_type();
  if (type == at::kComplexHalf && types.complex_half) return at::kComplexFloat;
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

bool has_bit(std::uint32_t bits, std::size_t number) {
  return number < 32 && (bits >> number & 1) != 0;
}

// Returns whether the kernel is to see wider copies. Arguments of several dtypes are an error, which the
// kernel would not find in the copies.
bool is_widened(InFloat32::Arguments arguments, const InFloat32& types) {
  bool has_wider = false, has_others = false, has_bfloat16 = false, has_half = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const auto type = argument.toTensor().scalar_type();
    if (!c10::isFloatingType(type) && !c10::isComplexType(type)) continue;
    if (type == at::kFloat && has_bit(types.float32_arguments, i)) continue;
    const bool is_wider = wider(argument, types).has_value();
    has_wider |= is_wider;
    has_others |= !is_wider;
    (type == at::kBFloat16 ? has_bfloat16 : has_half) = true;
  }
  return has_wider && !has_others && !(has_bfloat16 && has_half) &&
         (!types.applies || types.applies(arguments));
}

// Rounds what the kernel has written. A result that is a written argument is the caller's tensor.
void write_back(const at::Tensor& original, const at::Tensor& widened, torch::jit::Stack& stack,
                std::size_t first_result) {
  if (!original.sizes().equals(widened.sizes())) original.resize_(widened.sizes());
  original.copy_(widened);
  for (std::size_t i = first_result; i < stack.size(); ++i)
    if (stack[i].isTensor() && stack[i].toTensor().is_same(widened)) stack[i] = original;
}

void run_widened(const c10::OperatorHandle& op, c10::DispatchKey key, const InFloat32& types,
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
    if ((alias && alias->isWrite()) || has_bit(types.written_arguments, i))
      written.push_back({original, argument.toTensor()});
  }
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  const std::size_t first = stack.size() - schema.returns().size();
  for (const auto& [original, widened] : written) write_back(original, widened, stack, first);
  for (std::size_t i = first; i < stack.size(); ++i)
    if (!has_bit(types.float32_results, i - first)) narrow(stack[i], type);
}

bool accumulates(InFloat32::Arguments call) {  // _index_put_impl_
  return call[3].toBool();
}

// CUDA adds the gradients of maxima atomically.
constexpr std::int64_t kMaximum = 2;

bool is_sum_of_bag(InFloat32::Arguments call) {  // _embedding_bag_backward
  const bool is_sparse = call[9].toBool();
  return call[8].toInt() != kMaximum && !is_sparse;
}

bool is_dense_sum_of_bag(InFloat32::Arguments call) {  // _embedding_bag_dense_backward
  return call[7].toInt() != kMaximum;
}

bool has_no_dtype(InFloat32::Arguments call) {  // prod, of all elements or along a dimension
  return call[call.size() > 3 ? 3 : 1].isNone();
}

// Operators for which the CPU's kernels add up or multiply in the dtype of the elements, so that sums of
// bfloat16 stop growing after some hundred summands. CUDA's kernels do so in float32. Those that add
// atomically (index_add, scatter_add) do not, and are missing here.
const InFloat32* sum_in_float32(const std::string& op) {
  static const InFloat32 all{.half = true, .bfloat16 = true};
  static const auto with = [](InFloat32 types) {
    types.half = types.bfloat16 = true;
    return types;
  };
  // Mean and standard deviation are float32 on CUDA. The running ones of a batch norm are the caller's.
  static const auto statistics = with({.float32_results = 0b110});
  static const auto running_statistics = with({.float32_results = 0b110, .written_arguments = 0b11000});
  static const auto batch_norm_backward = with({.float32_arguments = 0b1100000});
  static const std::unordered_map<std::string, InFloat32> sums{
      {"aten::native_layer_norm", statistics},
      {"aten::native_layer_norm_backward", with({.float32_arguments = 0b11000})},
      {"aten::native_batch_norm", running_statistics},
      {"aten::_native_batch_norm_legit", statistics},
      {"aten::_batch_norm_with_update", statistics},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::batch_norm_backward", batch_norm_backward},
      {"aten::embedding_dense_backward", all},
      {"aten::_embedding_bag_backward", with({.applies = &is_sum_of_bag})},
      {"aten::_embedding_bag_dense_backward", with({.applies = &is_dense_sum_of_bag})},
      {"aten::_index_put_impl_", with({.applies = &accumulates})},
      {"aten::prod", with({.applies = &has_no_dtype})},
      {"aten::avg_pool2d_backward", all},
      {"aten::col2im", all},
  };
  const auto found = sums.find(op);
  return found == sums.end() ? nullptr : &found->second;
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
  if (transforms.contains(op.name)) return {.half = true, .complex_half = true};
  if (others.contains(op.name)) return {.half = true, .bfloat16 = true};
  if (const auto* const sum = sum_in_float32(op.name)) return *sum;
  return {};
}

void run_kernel(const c10::OperatorHandle& op, c10::DispatchKey key, const InFloat32& types,
                torch::jit::Stack& stack) {
  if (!types.any() || !is_widened(torch::jit::last(stack, op.schema().arguments().size()), types))
      [[likely]] {
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
