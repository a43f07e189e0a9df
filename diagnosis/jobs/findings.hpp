// Who is to blame for the waits of a job.
#pragma once

#include <chrono>
#include <cstdint>

#include "diagnosis/job.hpp"

namespace vccl {

/// Fills in the findings of a job whose waits are known. From each wait that has lasted, they follow who is
/// waited for, until they come to ranks that wait for nobody, which are to blame, or back to where they
/// began.
void find_culprits(Job& job, std::chrono::nanoseconds lasting, std::int64_t now_ns);

}  // namespace vccl
