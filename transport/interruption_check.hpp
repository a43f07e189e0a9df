// How a waiting thread learns that it is interrupted, above all by Ctrl-C.
#pragma once

#include <string>

namespace vccl {

/// Returns the name of the interruption of the calling thread, such as "KeyboardInterrupt", or an empty
/// string. May run code of others (Python's signal handlers). The interrupted thread raises the interruption
/// itself when its wait has ended. Until then, every call returns the name again.
using InterruptionCheck = std::string (*)();

/// Sets the check for the rest of the process. Without a check, nothing interrupts a wait.
void set_interruption_check(InterruptionCheck check) noexcept;

/// Returns the result of the check. The caller must hold no lock, because a signal handler may abort or
/// destroy the group.
std::string interruption();

/// Throws Error(aborted) if the calling thread is interrupted. `what` completes "interrupted by
/// KeyboardInterrupt while ...", for instance "it waited for the key 'table'".
void throw_if_interrupted(const std::string& what);

}  // namespace vccl
