// Dumps that somebody asks a running process for.
#pragma once

#include <chrono>

namespace vccl {

/// Makes this process write a dump when it gets SIGUSR1, unless the program has a handler of its own, and
/// when the file appears that VCCL_RECORDER_TRIGGER names. A thread waits for both without waking up in
/// between. Throws Error(invalid) if the file's folder cannot be watched. Further calls do nothing.
void serve_dump_requests();

/// Ends that. Call this when the process is about to end.
void end_dump_requests(std::chrono::milliseconds patience) noexcept;

}  // namespace vccl
