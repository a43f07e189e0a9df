// The staged algorithms: blocks go through shared slots, for memory that peers cannot map.
#pragma once

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

void staged_all_reduce(Communicator& communicator, const Call& call);
void staged_all_gather(Communicator& communicator, const Call& call);
void staged_broadcast(Communicator& communicator, const Call& call);
void staged_reduce_scatter(Communicator& communicator, const Call& call);
void staged_reduce(Communicator& communicator, const Call& call);
void staged_gather(Communicator& communicator, const Call& call);
void staged_scatter(Communicator& communicator, const Call& call);
void staged_all_to_all(Communicator& communicator, const Call& call);

}  // namespace vccl
