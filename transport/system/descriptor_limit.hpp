// A check of how many file descriptors this process may still open.
#pragma once

#include <cstddef>
#include <string>

namespace vccl {

/// Throws Error(system) unless `needed` more descriptors can be opened, and some more for what the system and
/// libzmq open for a moment. `what` names what needs them: "the links of rank 1 to other hosts". Call this
/// before libzmq opens descriptors, because libzmq calls abort() if it cannot open one for its threads.
void require_descriptors(std::size_t needed, const std::string& what);

}  // namespace vccl
