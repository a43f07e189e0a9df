// Starts the deferred tasks (Start::kByWaiter) for which no waiter comes.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace vdev {

/// Call this when a queue gets its first deferred task; `now` is base::monotonic_ns(). If no waiter takes the
/// queue's deferred tasks within a few milliseconds, a timer thread calls Queue::prompt() on every queue. The
/// process has one such thread, and the first call starts it. Throws nothing: if the system has no thread to
/// give, the deferred tasks run when somebody waits for them.
void expect_waiter(std::int64_t now) noexcept;

/// Call this when a queue has no deferred task any more.
void waiter_came() noexcept;

/// Ends the timer thread. The timer prompts no queue afterwards.
void stop_deferred_task_timer() noexcept;

}  // namespace vdev
