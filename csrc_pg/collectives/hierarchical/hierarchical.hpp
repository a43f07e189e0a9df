// The hierarchical algorithms: inside a host ranks address each other's memory, and between hosts the ranks
// with the same place exchange their share over a ring of their own, all places at once.
#pragma once

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

void hierarchical_all_reduce(Communicator& communicator, const Call& call);

}  // namespace vccl
