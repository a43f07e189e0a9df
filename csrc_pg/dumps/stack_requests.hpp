// How this process answers others that ask for its Python stacks (diagnosis/stacks.hpp).
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace vccl {

/// Returns the stacks of the process's threads in faulthandler's form, if Python's lock could be had within
/// the time. What has the lock sees frames that do not change.
using StackReader = std::optional<std::string> (*)(std::chrono::milliseconds);

/// Is raised on the thread of DumpRequests when Python's lock cannot be had. faulthandler has to handle it:
/// it then writes the stacks without the lock. Nobody else can run Python meanwhile.
int lockless_stack_signal() noexcept;

/// Prepares this process to answer, and returns the descriptor of the memory to which faulthandler has to
/// write on lockless_stack_signal(). Returns -1 if the process has been prepared before, if the program has
/// handlers of the two signals, or if the system gives no memory. If the calling thread is the main thread,
/// answers say from now on whether it waits.
int prepare_stack_answers(StackReader read) noexcept;

/// Returns whether the main thread waits for other ranks, or may do so.
bool main_thread_may_wait() noexcept;

/// Answers whoever has asked. The thread of DumpRequests calls this.
void answer_stack_request() noexcept;

}  // namespace vccl
