// How texts call ranks of the job.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace vccl {

/// Returns "rank 3" or "ranks 0, 1, 2". Of more than eight ranks, the text has the first ones, the last one
/// and their number.
std::string global_ranks_text(std::span<const std::uint64_t> ranks);

}  // namespace vccl
