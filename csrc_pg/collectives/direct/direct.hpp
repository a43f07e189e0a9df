// The direct algorithms, one collective a file: ranks read and write each other's buffers in place.
#pragma once

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

void direct_all_reduce(Communicator& communicator, const Call& call);
void direct_all_gather(Communicator& communicator, const Call& call);
void direct_broadcast(Communicator& communicator, const Call& call);
void direct_reduce_scatter(Communicator& communicator, const Call& call);
void direct_reduce(Communicator& communicator, const Call& call);
void direct_gather(Communicator& communicator, const Call& call);
void direct_scatter(Communicator& communicator, const Call& call);
void direct_all_to_all(Communicator& communicator, const Call& call);

}  // namespace vccl
