// Looks for elements that are NaN or infinite.
#pragma once

#include <cstddef>
#include <optional>

#include "csrc_pg/collectives/dtype.hpp"

namespace vccl {

/// Returns the index of the first element that is NaN or infinite, or nothing if there is none. A complex
/// element counts if one of its parts does. Reads at about the memory's speed.
std::optional<std::size_t> find_nonfinite(Dtype dtype, const void* elements, std::size_t count) noexcept;

}  // namespace vccl
