// Sees to it that tasks which were left to a waiter also run when no waiter comes.
#pragma once

#include <memory>

namespace vdev {

class Queue;

/// Has `queue` looked at every few milliseconds (Queue::prompt) until it has been quiet for a while. Starts
/// the process's one prompting thread with the first call. Throws nothing: without a thread, waiters do the
/// work.
void watch(std::weak_ptr<Queue> queue) noexcept;

/// Ends the thread, within a few milliseconds; nothing is watched from then on.
void stop_prompter() noexcept;

}  // namespace vdev
