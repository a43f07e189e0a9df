// Warns of calls that make the host wait for a card, or refuses them (torch.vdev.set_sync_debug_mode).
#pragma once

#include <atomic>
#include <cstdint>

namespace vdev {

enum class WaitingCalls : std::uint8_t { allowed, warned, refused };

/// Says what becomes of calls that wait, on all threads, from now on.
void set_waiting_calls(WaitingCalls mode) noexcept;
WaitingCalls waiting_calls() noexcept;

/// Warns of a call that waits, or raises an Error.
void report_waiting_call();

extern std::atomic<WaitingCalls> waiting_calls_mode;

/// Returns whether calls that wait are warned of or refused. This is cheap.
inline bool reports_waiting_calls() noexcept {
  return waiting_calls_mode.load(std::memory_order_relaxed) != WaitingCalls::allowed;
}

/// Call this where the program asks for something that the card has to be finished for, as a GPU has to: an
/// element's value, a shape that depends on elements, a copy to or from the host, the end of a stream. Waits
/// that a GPU does not have, such as for an operator's first call, do not count. Nor do waits inside a task.
inline void before_waiting_call() {
  if (reports_waiting_calls()) [[unlikely]]
    report_waiting_call();
}

}  // namespace vdev
