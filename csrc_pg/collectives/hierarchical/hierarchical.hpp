// The hierarchical algorithms: inside a host ranks address each other's memory, and between hosts the ranks
// with the same place exchange their share over a ring of their own, all rings at once.
//
// reductions.cpp has all_reduce, reduce_scatter and reduce. moves.cpp has all_gather and broadcast, in which
// what one host has goes to all hosts (spread.cpp), and gather, scatter and all_to_all, in which it goes to
// one other host (exchange.cpp).
#pragma once

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

void hierarchical_all_reduce(Communicator& communicator, const Call& call);
void hierarchical_all_gather(Communicator& communicator, const Call& call);
void hierarchical_broadcast(Communicator& communicator, const Call& call);
void hierarchical_reduce_scatter(Communicator& communicator, const Call& call);
void hierarchical_reduce(Communicator& communicator, const Call& call);
void hierarchical_gather(Communicator& communicator, const Call& call);
void hierarchical_scatter(Communicator& communicator, const Call& call);
void hierarchical_all_to_all(Communicator& communicator, const Call& call);

}  // namespace vccl
