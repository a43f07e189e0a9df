// The DebugInfoWriter that a program in C++ has registered with torch.
#pragma once

#include <string>

namespace vccl {

/// Returns whether there is one.
bool has_registered_writer() noexcept;
/// Hands it the dump of this process, and waits until it has returned, but for at most 15 seconds: it may
/// write to a place that does not answer. Does nothing if there is none.
void call_registered_writer(int rank, std::string dump);

}  // namespace vccl
