// The threads that complete the futures of collectives on CPU tensors.
#pragma once

#include <chrono>
#include <functional>

namespace vccl {

/// Runs `job` soon, on a thread that runs nothing else.
///
/// Completing a future runs the callbacks that Python added to it (`future.then(...)`). A callback may wait
/// for another collective of the same group, as PowerSGD's hook does. On the stream's worker, such a callback
/// would wait for itself; with a fixed number of threads, it could wait for a callback that has no thread. So
/// a job never queues behind another: if no thread is idle, the pool starts one. Idle threads end after a few
/// seconds.
void run_callback(std::function<void()> job);

/// Blocks until no job is left, for at most `patience`, and returns false if a job is left then. Call this
/// when the interpreter exits: a thread that returns to Python after the exit would crash the process.
bool wait_for_callbacks(std::chrono::milliseconds patience);

}  // namespace vccl
