// A rank's share of a direct reduction.
#pragma once

#include <span>

#include "csrc_pg/collectives/direct.hpp"

namespace vccl {

/// Reduces `count` elements from `begin` on of all inputs, and writes the results to `first_place` elements
/// behind the beginning of the outputs of all ranks in `targets`.
void reduce_directly(const Direct& direct, const Call& call, std::size_t begin, std::size_t count,
                     std::span<const int> targets, std::size_t first_place);

}  // namespace vccl
