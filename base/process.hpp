// Other processes of the machine.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace base {

/// Returns when the process was started, in ticks since the machine's start, plus 1. Returns 0 if it has
/// ended, even if its parent has not noticed yet. A process number belongs to another process later, which
/// was started at another time.
std::uint64_t birth_of(pid_t pid);

}  // namespace base
