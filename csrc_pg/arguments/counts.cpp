#include "csrc_pg/arguments/counts.hpp"

#include <algorithm>

#include <c10/util/Exception.h>

namespace vccl {

std::vector<std::size_t> elements_of_each(const std::vector<at::Tensor>& tensors) {
  std::vector<std::size_t> counts;
  for (const auto& tensor : tensors) counts.push_back(static_cast<std::size_t>(tensor.numel()));
  return counts;
}

bool have_equal_sizes(const std::vector<at::Tensor>& tensors) {
  return std::ranges::all_of(
      tensors, [&](const at::Tensor& tensor) { return tensor.sizes() == tensors.front().sizes(); });
}

std::vector<std::size_t> elements_of_splits(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                                            int size, const char* what, const char* operation) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, operation, ": the ", what,
                    " has no dimension to split along; view(1) gives it one");
  const std::int64_t rows = tensor.size(0);
  const auto row = static_cast<std::size_t>(rows == 0 ? 0 : tensor.numel() / rows);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, operation, ": the ", what, " has ", rows,
                      " rows, which do not divide equally among ", size, " ranks");
    return std::vector<std::size_t>(static_cast<std::size_t>(size),
                                    row * static_cast<std::size_t>(rows / size));
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<std::size_t>(size), operation, ": ", splits.size(), " ",
                    what, " split sizes for a group of ", size, " ranks");
  std::vector<std::size_t> counts;
  std::int64_t left = rows;
  for (const auto split : splits) {
    TORCH_CHECK_VALUE(split >= 0, operation, ": an ", what, " split size is ", split);
    // Each step is compared, so that no sum can overflow.
    TORCH_CHECK_VALUE(split <= left, operation, ": the ", what, " split sizes ", at::IntArrayRef(splits),
                      " are more than the ", rows, " rows that it has");
    left -= split;
    counts.push_back(row * static_cast<std::size_t>(split));
  }
  TORCH_CHECK_VALUE(left == 0, operation, ": the ", what, " split sizes ", at::IntArrayRef(splits), " are ",
                    rows - left, " rows, and it has ", rows);
  return counts;
}

void check_own_counts(std::span<const std::size_t> input, std::span<const std::size_t> output, int rank,
                      const char* operation) {
  const auto own = static_cast<std::size_t>(rank);
  TORCH_CHECK_VALUE(input[own] == output[own], operation, ": this rank sends itself ", input[own],
                    " elements and expects ", output[own]);
}

}  // namespace vccl
