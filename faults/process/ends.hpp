// What a fault does to a process.
#pragma once

#include "faults/plan.hpp"

namespace vccl::faults {

/// Does to the calling thread or its process what the fault says. Does nothing for the other kinds.
void strike_process(const Fault& fault);
/// Blocks the calling thread.
void sleep_for_seconds(double seconds);

}  // namespace vccl::faults
