// How this process answers others that ask for its Python stacks (diagnosis/stacks.hpp).
#pragma once

#include <chrono>

namespace vccl {

/// Returns whether Python's lock could be had within a time.
using LockProbe = bool (*)(std::chrono::milliseconds);

/// Prepares this process to answer, and returns the descriptor of the memory to which Python's faulthandler
/// has to write when the process gets kStackSignal. faulthandler then has to call the handler before it.
/// Returns -1 if the process has been prepared before, if the program has a handler of the signal, or if the
/// system gives no memory. If the calling thread is the main thread, answers say from now on whether it
/// waits.
int prepare_stack_answers(LockProbe probe) noexcept;

/// Returns whether the main thread waits for other ranks, or may do so.
bool main_thread_may_wait() noexcept;

/// Writes the last line of an answer. The thread of DumpRequests calls this after the signal's handler.
void finish_stack_answer() noexcept;

}  // namespace vccl
