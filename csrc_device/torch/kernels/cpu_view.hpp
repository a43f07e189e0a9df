// Shows card tensors as CPU tensors over the same memory, and turns the results of CPU kernels into card
// tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace vdev {

/// Holds the tensors of one operator call. Each storage is shown as one CPU storage only, and each tensor
/// that has parts as one tensor, so that kernels that look for overlapping or equal arguments still find
/// them.
class CpuView {
 public:
  enum class Memory : bool {
    kept,      // a shown tensor keeps the card's memory alive, and kernels may resize it
    borrowed,  // for a kernel that runs as a task: keeps only memory that is not the card's allocator's
  };

  /// `card` is where the operator runs. Every tensor must be there.
  explicit CpuView(int card, Memory memory = Memory::kept) : card_(card), memory_(memory) {}

  int card() const { return card_; }

  /// Returns the tensor that the CPU kernel sees for `tensor`: with the same memory, sizes, strides,
  /// conjugate and negative bits. Of a sparse, quantized or nested tensor, the parts (tensor_parts.hpp) are
  /// shown so. CPU tensors of dimension 0 are returned as they are, as they mix with CUDA's tensors, too;
  /// with `allow_cpu`, so are all CPU tensors. For any other tensor raises RuntimeError "Expected all tensors
  /// to be on the same device". A view that borrows returns a copy of a CPU tensor, which the program may
  /// change before the kernel runs.
  at::Tensor show(const at::Tensor& tensor, bool allow_cpu = false);

  /// Call this after the kernel wrote to `shown`, which show(original) had returned. Gives `original` what
  /// the kernel changed besides the data: sizes, strides, conjugate and negative bits, and a storage that
  /// grew. To a tensor that has parts, it gives all of them.
  void write_back(const at::Tensor& original, const at::Tensor& shown);

  /// Returns whether `shown` keeps the memory of the tensor that it shows.
  static bool keeps_memory(const at::Tensor& shown);

  /// Returns whether a kernel that wrote to `shown` left write_back() nothing to do.
  static bool unchanged(const at::Tensor& original, const at::Tensor& shown);

  /// Returns a result of the kernel as a tensor of the card. Memory that came from the card changes its owner
  /// without a copy. A result that shares memory with a shown tensor becomes a view of that tensor's storage.
  /// Raises NotImplementedError for a result that has neither a storage nor parts.
  at::Tensor adopt(const at::Tensor& result);

 private:
  c10::Storage show_storage(const c10::Storage& storage);
  at::Tensor show_parts(const at::Tensor& tensor);
  /// Gives `ours` the memory of `theirs`, the storage that stands for `ours`, if the kernel has replaced it.
  void take_memory(c10::StorageImpl* ours, c10::StorageImpl* theirs);
  void write_back_parts(const at::Tensor& original, const at::Tensor& shown);
  /// Returns the card's storage that `shown` stands for, or null.
  const c10::Storage* original_of(const c10::StorageImpl* shown) const;

  struct Shown {
    c10::Storage original;
    c10::Storage shown;
  };
  int card_;
  Memory memory_;
  c10::SmallVector<Shown, 6> storages_;
  // The tensors that have parts, with what is shown for them.
  std::vector<std::pair<at::Tensor, at::Tensor>> assembled_;
  // Used only for calls over long lists (optimizers), where searching storages_ would take quadratic time.
  std::unordered_map<const c10::StorageImpl*, std::size_t> index_;
};

/// Returns a strided tensor over `storage` with the sizes, strides, offset, dtype and bits (conjugate,
/// negative, zero, wrapped number) of `like`.
at::Tensor tensor_like(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like);

/// Returns the card that `tensor` lies on, or -1 for a tensor of another device and for an undefined one.
int card_of_tensor(const at::Tensor& tensor);

}  // namespace vdev
