// Warns of calls that make the host wait for a card, or refuses them (torch.vdev.set_sync_debug_mode).
#pragma once

#include <atomic>
#include <cstdint>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_device/torch/checks/gpu_trace.hpp"

namespace vdev {

enum class WaitingCalls : std::uint8_t { allowed, warned, refused };

/// Sets the treatment of calls that wait, on all threads, from now on.
void set_waiting_calls(WaitingCalls mode) noexcept;
WaitingCalls waiting_calls() noexcept;

/// Warns of a call that waits for `stream`, or raises a CardError. Otherwise tells the tracer of the wait.
void report_waiting_call(const Stream& stream);
/// Warns or raises in the same way for the current stream of `card`.
void report_waiting_call(int card);

extern std::atomic<WaitingCalls> waiting_calls_mode;

/// Returns whether calls that wait are warned of, refused or traced. This is cheap.
inline bool reports_waiting_calls() noexcept {
  return waiting_calls_mode.load(std::memory_order_relaxed) != WaitingCalls::allowed || traces_calls();
}

/// Call this where the program asks for something that the card has to be finished for, as a GPU has to: an
/// element's value, a shape that depends on elements, a copy to or from the host, the end of a stream. Waits
/// that a GPU does not have, such as for an operator's first call, do not count. Nor do waits inside a task.
/// Which operators ask for elements is decided in csrc_device/torch/facts/element_waits.cpp.
/// The argument is the stream, or the card whose current stream is waited for.
template <class Waited>
void before_waiting_call(const Waited& waited) {
  if (reports_waiting_calls()) [[unlikely]]
    report_waiting_call(waited);
}

}  // namespace vdev
