// Chooses the implementation of scaled_dot_product_attention, and offers the CPU's flash kernel under the
// names by which torch calls fused attention on CUDA.
#include <ATen/Context.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/facts/capability.hpp"
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

bool has_dtype_of(const sdp::sdp_params& params, std::initializer_list<at::ScalarType> types) {
  const auto type = params.query.scalar_type();
  return params.key.scalar_type() == type && params.value.scalar_type() == type &&
         std::ranges::find(types, type) != types.end();
}

bool is_masked(const sdp::sdp_params& params) {
  return params.attn_mask.has_value() && params.attn_mask->defined();
}

// This and the next two return why the fused kernels do not take these arguments, or null. The conditions are
// those of torch's kernels for CUDA, but for what the cards lack: dropout, and gradients of masks.
const char* refusal_of_both(const sdp::sdp_params& params) {
  if (!sdp::check_nested_tensor(params, false)) return "it takes no nested tensors";
  if (!sdp::check_tensor_shapes(params, false)) return "tensors must have 4 dimensions";
  if (!sdp::check_nonzero_sequence_lengths_dense(params, false)) return "a sequence is empty";
  if (params.dropout > 0) return "the cards have no dropout in it, unlike GPUs";
  return nullptr;
}

const char* refusal_of_flash(const sdp::sdp_params& params) {
  if (!at::globalContext().userEnabledFlashSDP()) return "it is switched off";
  if (const char* reason = refusal_of_both(params)) return reason;
  if (is_masked(params)) return "it takes no mask";
  const auto size = params.query.sym_size(-1);
  if (size != params.key.sym_size(-1) || size != params.value.sym_size(-1) || size > 256)
    return "the head dimensions must be equal, and at most 256";
  const auto shown = capability_of(card(current_card()));
  if (shown < Capability{8, 0}) return "GPUs below compute capability 8.0 do not have it (VDEV_PROFILE)";
  const bool is_small = (shown >= Capability{8, 6} && shown <= Capability{8, 9}) || shown.major == 12;
  if (is_small && sdp::input_requires_grad(params) && size > 192 && size <= 224)
    return "GPUs of this compute capability have no gradient for head dimensions from 193 to 224";
  if (params.is_causal && params.query.sym_size(-2) != params.key.sym_size(-2))
    return "is_causal needs queries and keys of one length";
  if (!has_dtype_of(params, {at::kHalf, at::kBFloat16}))
    return "queries, keys and values must be float16 or bfloat16";
  if (!sdp::check_batch_size_and_num_heads_dense<true>(params, false))
    return "the sizes of batches or heads do not fit";
  if (!sdp::check_last_dim_stride_equals_1_dense<true>(params, false))
    return "the last dimension must have stride 1";
  return nullptr;
}

// CUDA's matrix products inside of the efficient kernel load whole vectors of elements.
std::int64_t alignment_of_heads(const Tensor& query, Capability shown) {
  if (query.element_size() == 2) return 8;
  return shown.major >= 8 ? 4 : 1;
}

const char* refusal_of_efficient(const sdp::sdp_params& params) {
  if (!at::globalContext().userEnabledMemEfficientSDP()) return "it is switched off";
  if (const char* reason = refusal_of_both(params)) return reason;
  if (is_masked(params) && params.attn_mask->requires_grad())
    return "the cards give no gradient of a mask, unlike GPUs";
  const auto shown = capability_of(card(current_card()));
  if (!has_dtype_of(params, {at::kHalf, at::kFloat, at::kBFloat16}))
    return "queries, keys and values must be float16, bfloat16 or float32";
  if (shown.major < 8 && params.query.scalar_type() == at::kBFloat16)
    return "GPUs below compute capability 8.0 have it without bfloat16 (VDEV_PROFILE)";
  const auto size = params.query.sym_size(-1), of_values = params.value.sym_size(-1);
  const auto alignment = alignment_of_heads(params.query, shown);
  if (size != params.key.sym_size(-1) || size == 0 || of_values == 0 || size % alignment != 0 ||
      of_values % alignment != 0)
    return "head dimensions must be multiples of 8, of 4 for float32, and equal for queries and keys";
  if (!sdp::check_last_dim_stride_equals_1_dense<false>(params, false))
    return "the last dimension must have stride 1";
  if (!sdp::check_batch_size_and_num_heads_dense<false>(params, false))
    return "queries, keys and values must have equal batches and heads";
  return nullptr;
}

// Takes the first kernel in the order of the program that CUDA would take. Both fused ones are the CPU's
// flash kernel.
std::int64_t choice_as_on_cuda(const Tensor& query, const Tensor& key, const Tensor& value,
                               const OptionalMask& mask, double dropout, bool causal, std::optional<double>,
                               bool grouped_queries) {
  auto& context = at::globalContext();
  const sdp::sdp_params params{query, key, value, mask, dropout, causal, grouped_queries};
  for (const auto backend : context.sDPPriorityOrder()) {
    const bool taken =
        (backend == at::SDPBackend::flash_attention && refusal_of_flash(params) == nullptr) ||
        (backend == at::SDPBackend::efficient_attention && refusal_of_efficient(params) == nullptr) ||
        (backend == at::SDPBackend::math && context.userEnabledMathSDP());
    if (taken) return static_cast<std::int64_t>(backend);
  }
  TORCH_CHECK(
      false, "No available kernel. Aborting execution. scaled_dot_product_attention on ", query.device(),
      ": none of the kernels that are enabled (torch.nn.attention.sdpa_kernel) takes these tensors. Flash "
      "attention: ",
      refusal_of_flash(params), ". Efficient attention: ", refusal_of_efficient(params),
      ". Math: it is switched off. The cards do not have cuDNN's.");
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

// The CPU's kernel has one head dimension. Values may have another one in CUDA's, so the smaller is filled up
// with zeros, which change no product.
struct EqualHeads {
  Tensor query, key, value;
  std::int64_t size;
  double scale;

  EqualHeads(const Tensor& queries, const Tensor& keys, const Tensor& values,
             std::optional<double> given_scale)
      : size(std::max(queries.size(-1), values.size(-1))),
        scale(given_scale.value_or(1.0 / std::sqrt(static_cast<double>(queries.size(-1))))) {
    query = widened(queries);
    key = widened(keys);
    value = widened(values);
  }

  Tensor widened(const Tensor& tensor) const {
    const auto lacking = size - tensor.size(-1);
    return lacking == 0 ? tensor : at::constant_pad_nd(tensor, {0, lacking});
  }
};

// Undoes EqualHeads::widened() for a result of the size of `like`.
Tensor narrowed_as(const Tensor& like, const Tensor& result) {
  return with_heads_inside(result.narrow(-1, 0, like.size(-1)));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention(const Tensor& query, const Tensor& key,
                                                               const Tensor& value, const OptionalMask& mask,
                                                               bool with_logsumexp, double dropout,
                                                               bool causal, std::optional<double> scale) {
  TORCH_CHECK(!mask || !mask->defined() || mask->scalar_type() == query.scalar_type(),
              "invalid dtype for bias - should match query's dtype. The mask is ", mask->scalar_type(),
              ", and the query is ", query.scalar_type(), ".");
  const EqualHeads heads(query, key, value, scale);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      heads.query, heads.key, heads.value, dropout, causal, mask, heads.scale);
  Tensor logarithms =
      with_logsumexp ? padded(logsumexp) : at::empty({query.size(0), query.size(1), 0}, logsumexp.options());
  return {narrowed_as(value, output), std::move(logarithms), no_random_state(query, {}, at::kLong),
          no_random_state(query, {}, at::kLong)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
    const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, double dropout,
    std::array<bool, 4>, bool causal, std::optional<double> scale) {
  const auto given = mask.defined() ? OptionalMask(mask) : std::nullopt;
  const EqualHeads heads(query, key, value, scale);
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      heads.widened(grad), heads.query, heads.key, heads.value, heads.widened(output),
      logsumexp.narrow(2, 0, query.size(2)), dropout, causal, given, heads.scale);
  return {narrowed_as(query, of_query), narrowed_as(key, of_key), narrowed_as(value, of_value), Tensor()};
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
