#include "csrc_device/runtime/strided_memory.hpp"

#include <algorithm>
#include <vector>

namespace vdev {
namespace {

struct Dimension {
  std::size_t size, stride;  // the stride in bytes
};

/// Returns the dimensions with more than one element and a stride above 0, sorted by stride. Elements at the
/// same place (stride 0) count once.
std::vector<Dimension> dimensions_of(const StridedMemory& memory) {
  std::vector<Dimension> dimensions;
  for (std::size_t i = 0; i < memory.sizes.size(); ++i) {
    if (memory.sizes[i] > 1 && memory.strides[i] > 0)
      dimensions.push_back({static_cast<std::size_t>(memory.sizes[i]),
                            static_cast<std::size_t>(memory.strides[i]) * memory.item});
  }
  std::ranges::sort(dimensions, {}, &Dimension::stride);
  return dimensions;
}

bool is_empty(const StridedMemory& memory) {
  return std::ranges::find(memory.sizes, 0) != memory.sizes.end();
}

}  // namespace

std::size_t span_of(const StridedMemory& memory) {
  if (is_empty(memory)) return 0;
  std::size_t bytes = memory.item;
  for (const auto& dimension : dimensions_of(memory)) bytes += (dimension.size - 1) * dimension.stride;
  return bytes;
}

bool for_each_run(const StridedMemory& memory, std::size_t most,
                  const std::function<void(const std::byte*, std::size_t)>& function) {
  if (is_empty(memory)) return true;
  auto dimensions = dimensions_of(memory);
  // The inner dimensions that leave no gaps make one run.
  std::size_t run = memory.item;
  auto outer = dimensions.begin();
  for (; outer != dimensions.end() && outer->stride <= run; ++outer) run += (outer->size - 1) * outer->stride;
  dimensions.erase(dimensions.begin(), outer);

  std::size_t runs = 1;
  for (const auto& dimension : dimensions) {
    if (dimension.size > most / runs) return false;
    runs *= dimension.size;
  }
  std::vector<std::size_t> index(dimensions.size(), 0);
  const auto* at = static_cast<const std::byte*>(memory.data);
  for (std::size_t n = 0; n < runs; ++n) {
    function(at, run);
    for (std::size_t d = 0; d < dimensions.size(); ++d) {
      at += dimensions[d].stride;
      if (++index[d] < dimensions[d].size) break;
      at -= dimensions[d].size * dimensions[d].stride;
      index[d] = 0;
    }
  }
  return true;
}

}  // namespace vdev
