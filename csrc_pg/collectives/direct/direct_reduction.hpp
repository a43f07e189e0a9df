// The reduction of a chunk by one rank, in place.
#pragma once

#include <span>

#include "csrc_pg/collectives/direct/direct_call.hpp"

namespace vccl {

/// Reduces a chunk of all inputs, and writes the results into the outputs of all ranks in `targets`, from
/// `output_begin` elements on.
void reduce_directly(const DirectCall& direct, const Call& call, Chunk chunk, std::span<const int> targets,
                     std::size_t output_begin);

}  // namespace vccl
