// Which tensors share memory.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace vccl {

/// Two elements of the tensor are the same memory, as in what expand() makes.
///
/// Exact for every layout that torch's own functions make; where strides are neither nested nor zero
/// (as_strided) it is exact for up to a million elements, and false beyond.
bool overlaps_itself(const at::Tensor& tensor);

/// The tensors have memory in common. Exact if both are dense, whatever the order of their dimensions, and
/// for up to a million elements; beyond, tensors with gaps count as apart, as the columns of a matrix are.
bool overlap(const at::Tensor& a, const at::Tensor& b);

/// Each element of the one is the same memory as the element of the other with the same index.
bool same_memory(const at::Tensor& a, const at::Tensor& b);

/// `part` is the memory of part `index` of `size` equal parts of `whole`, along its first dimension.
bool is_part(const at::Tensor& part, const at::Tensor& whole, int index, int size);

/// The memory of several tensors, sorted, so that many can be compared.
class Memory {
 public:
  /// `tensors` outlive it.
  explicit Memory(const std::vector<at::Tensor>& tensors);
  /// The number of one that overlaps `tensor`, other than number `except`; -1: none does.
  int find(const at::Tensor& tensor, int except = -1) const;

 private:
  struct Entry {
    std::uintptr_t begin, end;  // bytes from the first to the last element
    std::uintptr_t reach;       // the largest end up to here
    int number;
  };
  const std::vector<at::Tensor>& tensors_;
  std::vector<Entry> entries_;  // by begin; none for empty tensors
};

}  // namespace vccl
