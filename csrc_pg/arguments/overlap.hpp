// Finds tensors that share memory.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace vccl {

/// Returns whether two elements of the tensor are the same memory, as in the result of expand().
///
/// The answer is exact for every layout that torch's own functions make. If the strides are neither nested
/// nor zero (as_strided), the answer is exact for up to a million elements, and false beyond.
bool overlaps_itself(const at::Tensor& tensor);

/// Returns whether the tensors have memory in common. The answer is exact if both tensors are dense, in
/// whatever order of dimensions, and otherwise for up to a million elements. Beyond that, tensors with gaps,
/// such as the columns of a matrix, count as apart.
bool overlap(const at::Tensor& a, const at::Tensor& b);

/// Returns whether each element of `a` is the same memory as the element of `b` with the same index.
bool same_memory(const at::Tensor& a, const at::Tensor& b);

/// Returns whether `chunk` is the memory of chunk `index` of `size` equal chunks of `whole`, along its first
/// dimension.
bool is_chunk(const at::Tensor& chunk, const at::Tensor& whole, int index, int size);

/// Holds the memory of several tensors, sorted, so that many tensors can be compared quickly.
class Memory {
 public:
  /// Reads `tensors`, which must outlive this object.
  explicit Memory(const std::vector<at::Tensor>& tensors);
  /// Returns the number of a tensor, other than `except`, that overlaps `tensor`, or -1 if none does.
  int find(const at::Tensor& tensor, int except = -1) const;

 private:
  struct Entry {
    std::uintptr_t begin, end;  // bytes from the first to the last element
    std::uintptr_t reach;       // the largest `end` of this entry and those before it
    int number;
  };
  const std::vector<at::Tensor>& tensors_;
  std::vector<Entry> entries_;  // sorted by `begin`, without empty tensors
};

}  // namespace vccl
