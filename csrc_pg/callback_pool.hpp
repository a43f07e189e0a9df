// Threads that complete the futures of collectives on CPU tensors.
#pragma once

#include <chrono>
#include <functional>

namespace vccl {

/// Runs `job` soon, on a thread that is at nothing else.
///
/// Completing a future runs what Python hung on it (`future.then(...)`), and that may wait for another
/// collective of the same group, as PowerSGD's hook does: on the stream's worker it would wait for itself,
/// and on any fixed number of threads for one that waits for it. So a job never queues behind another: when
/// no thread is idle, one is added. Idle threads leave after a few seconds.
void run_callback(std::function<void()> job);

/// Waits, at most `patience`, until no job is left; false when one is. For the interpreter's exit: a thread
/// that comes back to Python after that ends the process with a crash.
bool wait_for_callbacks(std::chrono::milliseconds patience);

}  // namespace vccl
