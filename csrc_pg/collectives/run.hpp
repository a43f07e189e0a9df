// Runs a collective.
#pragma once

#include "csrc_pg/collectives/call.hpp"
#include "transport/deadline.hpp"

namespace vccl {

/// Runs the call with the algorithm that the selector chooses. Blocks until this rank's output is complete
/// and its input may be overwritten. Throws Error. Error(unsupported) and Error(invalid) are thrown before
/// anything moves and leave the communicator as it was; after any other error the communicator has failed.
void run(Communicator& communicator, const Call& call, const Deadline& deadline);

}  // namespace vccl
