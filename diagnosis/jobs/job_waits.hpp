// Who waits for whom, from what the recorders of a job say.
#pragma once

#include <cstdint>

#include "diagnosis/job.hpp"

namespace vccl {

/// Fills in the waits that follow from pending calls. A rank waits in a collective for the members that have
/// not called it. If all have called it, it waits for those that have not started it, because their stream is
/// busy with something else. A rank waits in a message for its peer, unless the peer has done its part.
void find_waits(Job& job);

/// Adds the waits of ranks that stand in a function of torch.distributed without a pending call, such as
/// new_group: for the ranks that stand elsewhere. Call this when stacks are known. The waits began at
/// `since_ns` or later.
void find_waits_in_stacks(Job& job, std::int64_t since_ns);

/// Returns the function of torch.distributed that the user's code has called and that the rank stands in, or
/// an empty text.
std::string distributed_function(const JobRank& rank);

}  // namespace vccl
