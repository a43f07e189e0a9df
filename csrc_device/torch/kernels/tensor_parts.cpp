#include "csrc_device/torch/kernels/tensor_parts.hpp"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include "csrc_device/torch/device_type.hpp"

namespace vdev {
namespace {

// Casts to what the layout of the tensor says.
template <class Impl>
Impl* impl_of(const at::Tensor& tensor) {
  return static_cast<Impl*>(tensor.unsafeGetTensorImpl());
}

bool is_compressed(const at::Tensor& tensor) {
  const c10::Layout layout = tensor.layout();
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
         layout == at::kSparseBsc;
}

c10::DispatchKeySet key_for(const at::Tensor& part, c10::DispatchKey on_cpu, c10::DispatchKey on_card) {
  return c10::DispatchKeySet(is_card(part.device()) ? on_card : on_cpu);
}

at::Tensor assemble_coo(const at::Tensor& like, const TensorParts& parts) {
  const auto keys = key_for(parts[1], c10::DispatchKey::SparseCPU, sparse_key());
  auto tensor = at::detail::make_tensor<at::SparseTensorImpl>(keys, like.dtype());
  replace_parts(tensor, like, parts);
  return tensor;
}

at::Tensor assemble_compressed(const at::Tensor& like, const TensorParts& parts) {
  const auto keys = key_for(parts[2], c10::DispatchKey::SparseCsrCPU, sparse_compressed_key());
  auto tensor =
      at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, parts[2].device(), like.layout(), like.dtype());
  replace_parts(tensor, like, parts);
  return tensor;
}

at::Tensor assemble_quantized(const at::Tensor& like, const TensorParts& parts) {
  const auto keys = key_for(parts[0], c10::DispatchKey::QuantizedCPU, quantized_key());
  auto tensor = at::detail::make_tensor<at::QTensorImpl>(c10::Storage(parts[0].storage()), keys, like.dtype(),
                                                         impl_of<at::QTensorImpl>(like)->quantizer());
  replace_parts(tensor, like, parts);
  return tensor;
}

at::Tensor assemble_nested(const at::Tensor& like, const TensorParts& parts) {
  const auto* from = impl_of<at::native::NestedTensorImpl>(like);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      parts[0], from->get_nested_sizes(), from->get_nested_strides(), from->get_storage_offsets());
}

// Returns a dense tensor with the integers of a quantized one.
at::Tensor integers_of(const at::Tensor& tensor) {
  const auto keys = key_for(tensor, c10::DispatchKey::CPU, dense_key());
  auto integers = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), keys, c10::scalarTypeToTypeMeta(toUnderlying(tensor.scalar_type())));
  integers.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                        tensor.storage_offset());
  return integers;
}

}  // namespace

bool has_parts(const at::Tensor& tensor) {
  return tensor.is_sparse() || is_compressed(tensor) || tensor.is_quantized() ||
         (tensor.is_nested() && tensor.layout() == at::kStrided);
}

TensorParts parts_of(const at::Tensor& tensor) {
  if (tensor.is_sparse()) {
    const auto* impl = impl_of<at::SparseTensorImpl>(tensor);
    return {impl->indices(), impl->values()};
  }
  if (is_compressed(tensor)) {
    const auto* impl = impl_of<at::SparseCsrTensorImpl>(tensor);
    return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
  }
  if (tensor.is_quantized()) return {integers_of(tensor)};
  return {impl_of<at::native::NestedTensorImpl>(tensor)->get_unsafe_storage_as_tensor()};
}

at::Tensor assemble(const at::Tensor& like, const TensorParts& parts) {
  if (like.is_sparse()) return assemble_coo(like, parts);
  if (is_compressed(like)) return assemble_compressed(like, parts);
  if (like.is_quantized()) return assemble_quantized(like, parts);
  return assemble_nested(like, parts);
}

void replace_parts(const at::Tensor& tensor, const at::Tensor& like, const TensorParts& parts) {
  if (like.is_sparse()) {
    auto* impl = impl_of<at::SparseTensorImpl>(tensor);
    const auto* from = impl_of<at::SparseTensorImpl>(like);
    impl->raw_resize_(from->sparse_dim(), from->dense_dim(), like.sizes());
    impl->set_indices_and_values_unsafe(parts[0], parts[1]);
    impl->set_coalesced(from->coalesced());
  } else if (is_compressed(like)) {
    auto* impl = impl_of<at::SparseCsrTensorImpl>(tensor);
    impl->set_layout(like.layout());
    impl->set_member_tensors(parts[0], parts[1], parts[2], like.sizes());
  } else if (like.is_quantized()) {
    auto* impl = impl_of<at::QTensorImpl>(tensor);
    impl->set_quantizer_(impl_of<at::QTensorImpl>(like)->quantizer());
    impl->set_sizes_and_strides(parts[0].sizes(), parts[0].strides(), parts[0].storage_offset());
  }
}

}  // namespace vdev
