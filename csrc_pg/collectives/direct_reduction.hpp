// A rank's share of a direct reduction.
#pragma once

#include <span>

#include "csrc_pg/collectives/direct.hpp"

namespace vccl {

/// Reduces the elements from `begin` on of all inputs, and writes the results to every one of `outputs`,
/// which are the addresses of the first result.
void reduce_directly(const Direct& direct, const Call& call, std::size_t begin, std::size_t count,
                     std::span<std::byte* const> outputs);

}  // namespace vccl
