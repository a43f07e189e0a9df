// Chooses the implementation of scaled_dot_product_attention. The choice is the one that torch makes for the
// same tensors on the CPU.
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

namespace at::native {
namespace {

// Reads only sizes, strides and dtypes, so it needs no CPU tensors. Without an entry in this table, torch
// splits attention into matmul and softmax, which costs several times as much as the CPU's flash kernel.
std::int64_t choice_as_on_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                              const std::optional<Tensor>& mask, double dropout, bool causal,
                              std::optional<double> scale, bool grouped_queries) {
  return _fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped_queries);
}

}  // namespace

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choice_as_on_cpu)

}  // namespace at::native

namespace vdev {
namespace {

// nn.TransformerEncoder calls this before it packs padded sequences into a nested tensor, which vdev does not
// support. If the result is false, it uses the padded sequences.
bool can_be_nested(const at::Tensor&, const at::Tensor&) {
  return false;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &at::native::choice_as_on_cpu);
  m.impl("_nested_tensor_from_mask_left_aligned", &can_be_nested);
}

}  // namespace
}  // namespace vdev
