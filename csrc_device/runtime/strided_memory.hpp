// The contiguous runs that a strided array consists of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace vdev {

/// Describes the memory of a strided array, and owns nothing. There are as many strides as sizes; both are in
/// elements, and no stride is negative.
struct StridedMemory {
  const void* data = nullptr;  // the first element
  std::size_t item = 1;        // bytes an element
  std::span<const std::int64_t> sizes, strides;
};

/// Returns the bytes from the first element to the end of the last one, or 0 if there are no elements.
std::size_t span_of(const StridedMemory& memory);

/// Calls `function` with the first address and the number of bytes of each run, and returns true. Returns
/// false, without calling `function`, when there are more than `most` runs.
bool for_each_run(const StridedMemory& memory, std::size_t most,
                  const std::function<void(const std::byte*, std::size_t)>& function);

}  // namespace vdev
