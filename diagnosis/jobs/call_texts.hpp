// How calls and groups are named where the orders of ranks are compared.
#pragma once

#include <cstddef>
#include <string>

#include "diagnosis/job.hpp"

namespace vccl {

/// Returns ", in step (train.py:12)" for an entry of the rank, or an empty text if no frame is known.
std::string place_text(const JobRank& rank, std::size_t entry);

/// Returns the group's name for people, with torch's name where two groups have the same one.
std::string unique_name(const Job& job, const JobGroup& group);

}  // namespace vccl
