// Chooses the implementation of scaled_dot_product_attention, and offers the CPU's flash kernel under the
// names by which torch calls fused attention on CUDA.
#include <ATen/Context.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/registration.hpp"

namespace vdev {
namespace {

using at::Tensor;
using OptionalMask = std::optional<Tensor>;

// Reads only sizes, strides and dtypes, so it needs no CPU tensors. Without an entry in this table, torch
// splits attention into matmul and softmax, which costs several times as much as the CPU's flash kernel.
std::int64_t choice_as_on_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                              const OptionalMask& mask, double dropout, bool causal,
                              std::optional<double> scale, bool grouped_queries) {
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped_queries);
}

bool equal_head_dimensions(const sdp::sdp_params& params) {
  const auto size = params.query.sym_size(-1);
  return size == params.key.sym_size(-1) && size == params.value.sym_size(-1);
}

// Returns whether the CPU's flash kernel takes these arguments. torch offers the question only together with
// the one whether flash attention is switched on.
bool flash_kernel_takes(const sdp::sdp_params& params) {
  const auto type = params.query.scalar_type();
  const bool known_type =
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  return known_type && params.key.scalar_type() == type && params.value.scalar_type() == type &&
         sdp::check_for_dropout(params, false) && sdp::check_nested_tensor(params, false) &&
         sdp::check_tensor_shapes(params, false) &&
         sdp::check_batch_size_and_num_heads_dense<true>(params, false) &&
         sdp::check_attn_mask_shape(params, false) && equal_head_dimensions(params) &&
         sdp::check_nonzero_sequence_lengths_dense(params, false) &&
         sdp::check_last_dim_stride_equals_1_dense<false>(params, false);
}

// Follows CUDA's order: flash attention, which takes no mask there, then memory-efficient attention, then
// math. Both fused ones are the CPU's flash kernel. It gives no gradient of a mask.
std::int64_t choice_as_on_cuda(const Tensor& query, const Tensor& key, const Tensor& value,
                               const OptionalMask& mask, double dropout, bool causal, std::optional<double>,
                               bool grouped_queries) {
  const auto& context = at::globalContext();
  const sdp::sdp_params params{query, key, value, mask, dropout, causal, grouped_queries};
  const bool masked = mask.has_value() && mask->defined();
  const bool mask_learns = masked && mask->requires_grad();
  auto choice = at::SDPBackend::error;
  if (flash_kernel_takes(params) && !masked && context.userEnabledFlashSDP()) {
    choice = at::SDPBackend::flash_attention;
  } else if (flash_kernel_takes(params) && !mask_learns && !grouped_queries &&
             context.userEnabledMemEfficientSDP()) {
    choice = at::SDPBackend::efficient_attention;
  } else if (context.userEnabledMathSDP()) {
    choice = at::SDPBackend::math;
  }
  TORCH_CHECK(
      choice != at::SDPBackend::error,
      "No available kernel. Aborting execution. scaled_dot_product_attention on ", query.device(),
      ": none of the kernels that are enabled (torch.nn.attention.sdpa_kernel) takes these tensors. Cards "
      "have flash attention without masks and dropout, efficient attention without dropout, and math.");
  return static_cast<std::int64_t>(choice);
}

using FlashResult =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

// torch keeps the state of the random numbers for the backward. Without dropout nobody reads it, but DTensor
// and torch.compile know its shape: two numbers and a scalar of flash attention, two scalars of efficient
// attention.
Tensor no_random_state(const Tensor& like, at::IntArrayRef shape, at::ScalarType type) {
  return at::zeros(shape, like.options().dtype(type));
}

// The results have the shapes and strides that CUDA's kernels give them, because code that torch.compile
// generates relies on those. The next two functions bring the CPU's results into that form.
Tensor with_strides_of(const Tensor& like, const Tensor& values) {
  return values.strides() == like.strides() ? values : at::empty_like(like).copy_(values);
}

// Returns the values, (batch, heads, tokens, size), in the order (batch, tokens, heads, size) in memory.
Tensor with_heads_inside(const Tensor& values) {
  return values.transpose(1, 2).contiguous().transpose(1, 2);
}

// DTensor can ask for this: it shards the heads of queries and of keys by themselves.
void check_heads(const Tensor& query, const Tensor& key) {
  TORCH_CHECK(query.size(1) % key.size(1) == 0, "Flash attention on ", query.device(), ": ", key.size(1),
              " heads of keys and values do not divide ", query.size(1),
              " heads of queries. Where the tensors are sharded by heads, each rank needs the same number of "
              "heads of keys.");
}

FlashResult flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, double dropout,
                            bool causal, bool, std::optional<double> scale) {
  check_heads(query, key);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout,
                                                                             causal, std::nullopt, scale);
  return {with_strides_of(query, output),
          logsumexp.contiguous(),
          Tensor(),
          Tensor(),
          query.sym_size(2),
          key.sym_size(2),
          no_random_state(query, {2}, at::kUInt64),
          no_random_state(query, {}, at::kUInt64),
          at::empty({0}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& output,
    const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double dropout,
    bool causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, output, logsumexp, dropout, causal, std::nullopt, scale);
  return {with_strides_of(query, of_query), with_strides_of(key, of_key), with_strides_of(value, of_value)};
}

// CUDA's efficient kernel rounds the tokens of the logarithms up to a multiple of 32.
Tensor padded(const Tensor& logsumexp) {
  const auto tokens = logsumexp.size(2);
  const auto rounded = (tokens + 31) / 32 * 32;
  Tensor result = at::zeros({logsumexp.size(0), logsumexp.size(1), rounded}, logsumexp.options());
  result.narrow(2, 0, tokens).copy_(logsumexp);
  return result;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention(const Tensor& query, const Tensor& key,
                                                               const Tensor& value, const OptionalMask& mask,
                                                               bool with_logsumexp, double dropout,
                                                               bool causal, std::optional<double> scale) {
  auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale);
  Tensor logarithms =
      with_logsumexp ? padded(logsumexp) : at::empty({query.size(0), query.size(1), 0}, logsumexp.options());
  return {with_heads_inside(output), std::move(logarithms), no_random_state(query, {}, at::kLong),
          no_random_state(query, {}, at::kLong)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
    const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, double dropout,
    std::array<bool, 4>, bool causal, std::optional<double> scale) {
  const auto given = mask.defined() ? OptionalMask(mask) : std::nullopt;
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, output, logsumexp.narrow(2, 0, query.size(2)), dropout, causal, given, scale);
  return {with_heads_inside(of_query), with_heads_inside(of_key), with_heads_inside(of_value), Tensor()};
}

// nn.TransformerEncoder calls this before it packs padded sequences into a nested tensor, which cards do not
// support. If the result is false, it uses the padded sequences.
bool can_be_nested(const Tensor&, const Tensor&) {
  return false;
}

const auto choice = pose() == Pose::cuda ? &choice_as_on_cuda : &choice_as_on_cpu;

const Registration attention_registration([] {
  register_in_stub(at::native::_fused_sdp_choice_stub, choice);
});

VDEV_LIBRARY_IMPL(aten, dense_key(), m) {
  m.impl("_fused_sdp_choice", choice);
  m.impl("_nested_tensor_from_mask_left_aligned", &can_be_nested);
  m.impl("_scaled_dot_product_flash_attention", &flash_attention);
  m.impl("_scaled_dot_product_flash_attention_backward", &flash_attention_backward);
  m.impl("_scaled_dot_product_efficient_attention", &efficient_attention);
  m.impl("_scaled_dot_product_efficient_attention_backward", &efficient_attention_backward);
}

}  // namespace
}  // namespace vdev
