// Sees to it that tasks which were left to a waiter also run when no waiter comes.
#pragma once

#include <cstdint>

namespace vdev {

/// A queue that had no task left to a waiter has one now. Every queue is looked at (Queue::prompt) once it
/// may have had one for a few milliseconds. Starts the process's one prompting thread with the first call.
/// Throws nothing: without a thread, waiters do the work. `now`: monotonic_ns().
void expect_waiter(std::int64_t now) noexcept;

/// That queue has none any more.
void waiter_came() noexcept;

/// Ends the thread; no queue is looked at from then on.
void stop_prompter() noexcept;

}  // namespace vdev
