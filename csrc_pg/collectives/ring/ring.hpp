// The ring algorithms, one collective a file: blocks go from neighbour to neighbour, over any transport.
#pragma once

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

void ring_all_reduce(Communicator& communicator, const Call& call);
void ring_all_gather(Communicator& communicator, const Call& call);
void ring_broadcast(Communicator& communicator, const Call& call);
void ring_reduce_scatter(Communicator& communicator, const Call& call);
void ring_reduce(Communicator& communicator, const Call& call);
void ring_gather(Communicator& communicator, const Call& call);
void ring_scatter(Communicator& communicator, const Call& call);
void ring_all_to_all(Communicator& communicator, const Call& call);
void ring_barrier(Communicator& communicator, const Call& call);

}  // namespace vccl
