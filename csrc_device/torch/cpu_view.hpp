// Card tensors as CPU tensors over the same memory, and what CPU kernels return as card tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <unordered_map>

namespace vdev {

/// The tensors of one operator call. Each storage is shown under one CPU storage only, so that kernels that
/// look for overlapping or equal arguments still find them. A shown tensor keeps the card's memory alive.
class CpuView {
 public:
  /// `card`: where the operator runs; every tensor must be there.
  explicit CpuView(int card) : card_(card) {}

  int card() const { return card_; }

  /// `tensor` as the CPU kernel is to see it: same memory, sizes, strides, conjugate and negative bits. CPU
  /// tensors of dimension 0 mix with card tensors as they do with CUDA's and are returned as they are;
  /// `allow_cpu` lets any CPU tensor through. Raises RuntimeError "Expected all tensors to be on the same
  /// device" otherwise. A sparse COO tensor is shown as one whose indices and values are shown.
  at::Tensor show(const at::Tensor& tensor, bool allow_cpu = false);

  /// After the kernel wrote to `shown`, which show(original) had returned: what it changed besides the data
  /// (sizes, strides, conjugate and negative bits, a storage that grew; of a sparse tensor, all there is).
  void write_back(const at::Tensor& original, const at::Tensor& shown);

  /// A result of the kernel as a tensor of the card. Memory that came from the card changes its owner without
  /// a copy; a result that shares memory with a shown tensor becomes a view of that tensor's storage. Raises
  /// NotImplementedError for a result that is neither strided nor sparse COO.
  at::Tensor adopt(const at::Tensor& result);

 private:
  c10::Storage show_storage(const c10::Storage& storage);
  /// If the kernel gave `theirs` other memory than `ours`, for which it stands, that becomes `ours`'s.
  void take_memory(c10::StorageImpl* ours, c10::StorageImpl* theirs);
  void write_back_sparse(const at::Tensor& original, const at::Tensor& shown);
  /// The card's storage that `shown` stands for, or null.
  const c10::Storage* original_of(const c10::StorageImpl* shown) const;

  struct Shown {
    c10::Storage original;
    c10::Storage shown;
  };
  int card_;
  c10::SmallVector<Shown, 6> storages_;
  // Only for calls over long lists (optimizers), where looking through storages_ would cost the square.
  std::unordered_map<const c10::StorageImpl*, std::size_t> index_;
};

/// The card that `tensor` lies on; -1 for a tensor of another device, or none.
int card_of_tensor(const at::Tensor& tensor);

}  // namespace vdev
