// Takes tensors apart that are not plain dense ones, and puts them together from other parts.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace vdev {

using TensorParts = c10::SmallVector<at::Tensor, 3>;

/// Returns whether `tensor` consists of parts: a sparse, quantized or nested (strided) tensor, on a card or
/// on the CPU.
bool has_parts(const at::Tensor& tensor);

/// Returns the dense tensors that hold the elements of `tensor`, for which has_parts() is true. These are the
/// indices and values (sparse COO), the compressed indices, plain indices and values (sparse CSR, CSC, BSR
/// and BSC), the integers (quantized), or the whole storage in one dimension (nested).
TensorParts parts_of(const at::Tensor& tensor);

/// Calls `function` with the dense tensors that `tensor` consists of, if they have elements.
template <class Function>
void for_each_dense(const at::Tensor& tensor, const Function& function) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  if (has_parts(tensor)) {
    for (const at::Tensor& part : parts_of(tensor)) for_each_dense(part, function);
  } else if (tensor.has_storage() && tensor.layout() == at::kStrided) {
    function(tensor);
  }
}

/// Returns a tensor like `like`, which consists of `parts`. They are on one device, which must be the current
/// one if it is a card.
at::Tensor assemble(const at::Tensor& like, const TensorParts& parts);

/// Makes `tensor` consist of `parts`, with the sizes of `like`. Both are of one kind. The sizes of a nested
/// tensor never change, and only its storage may have been replaced, which `tensor` shares.
void replace_parts(const at::Tensor& tensor, const at::Tensor& like, const TensorParts& parts);

}  // namespace vdev
