// What the rooms above have given the faults to call.
#pragma once

#include "faults/faults.hpp"

namespace vccl::faults {

const Handlers& handlers() noexcept;
/// Kills the other ranks of this rank's host. This rank is to die next.
void lose_host();

}  // namespace vccl::faults
