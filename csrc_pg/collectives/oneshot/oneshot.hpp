// The one-shot algorithms: what a rank gives travels with its announcement, and from there, if there are
// several hosts, over the leaps between their leaders.
#pragma once

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

void oneshot_all_reduce(Communicator& communicator, const Call& call);
void oneshot_all_gather(Communicator& communicator, const Call& call);
void oneshot_broadcast(Communicator& communicator, const Call& call);
void oneshot_reduce_scatter(Communicator& communicator, const Call& call);
void oneshot_reduce(Communicator& communicator, const Call& call);
void oneshot_gather(Communicator& communicator, const Call& call);
void oneshot_scatter(Communicator& communicator, const Call& call);
void oneshot_all_to_all(Communicator& communicator, const Call& call);
void oneshot_barrier(Communicator& communicator, const Call& call);

/// Returns what a rank sends along, and nothing for a call whose payload would be too long or unknown to
/// others.
std::optional<Payload> oneshot_payload(const Call& call, int rank, int size);

}  // namespace vccl
