// How many elements each rank's part has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace vccl {

/// Of tensors, one a rank.
std::vector<std::size_t> elements_of_each(const std::vector<at::Tensor>& tensors);

/// Of the parts of one tensor along its first dimension. `splits` are rows, one number a rank; none: equal
/// parts. Raises ValueError if they are not all of the rows, or these do not divide; `what` the tensor is.
std::vector<std::size_t> elements_of_splits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                                            int size, const char* what, const char* operation);

/// What a rank sends to itself is what it expects from itself. Raises ValueError.
void check_own_counts(std::span<const std::size_t> input, std::span<const std::size_t> output, int rank,
                      const char* operation);

}  // namespace vccl
