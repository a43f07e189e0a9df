// Counts the elements of each rank's chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace vccl {

/// Returns the number of elements of each tensor. The list has one tensor for each rank.
std::vector<std::size_t> elements_of_each(const std::vector<at::Tensor>& tensors);

/// Returns whether all tensors of the list have the same sizes.
bool have_equal_sizes(const std::vector<at::Tensor>& tensors);

/// Returns the number of elements of each rank's chunk of a tensor along its first dimension. `splits` has
/// the number of rows for each rank; if it is empty, the chunks are equal. Raises ValueError if the splits do
/// not add up to the rows, or if the rows cannot be divided equally. `what` names the tensor in the message.
std::vector<std::size_t> elements_of_splits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                                            int size, const char* what, const char* operation);

/// Checks that a rank sends itself as much as it expects from itself. Raises ValueError.
void check_own_counts(std::span<const std::size_t> input, std::span<const std::size_t> output, int rank,
                      const char* operation);

}  // namespace vccl
