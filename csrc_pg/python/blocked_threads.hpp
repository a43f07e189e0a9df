// Tells the transport's DeadlockWatch which threads of the process are blocked by collectives.
#pragma once

namespace vccl {

/// Makes the process's DeadlockWatch ask this room for the blocked threads. Threads that wait in collectives,
/// or in the runtime for a collective, are blocked. The process counts as blocked if it has no callback to
/// run, no task that could begin, and no other thread in the midst of Python that might call
/// torch.distributed (vccl/_threads.py).
void let_watch_ask_for_blocked_threads();

}  // namespace vccl
