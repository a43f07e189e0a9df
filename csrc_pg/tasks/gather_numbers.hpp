// The numbers that the ranks of a group tell each other within a task.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/communicator.hpp"
#include "transport/deadline.hpp"

namespace vccl {

using Numbers = std::vector<std::int64_t>;

/// Returns the numbers of each rank, one rank after the other. Every rank gives the same count of numbers.
Numbers gather_numbers(Communicator& communicator, const Deadline& deadline, const Numbers& own);

}  // namespace vccl
