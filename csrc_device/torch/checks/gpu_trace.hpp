// Tells torch's tracer of GPU calls what the program does with cards (torch.cuda._gpu_trace and
// torch.vdev._gpu_trace). torch.cuda._sanitizer finds races by these calls.
#pragma once

#include <c10/core/impl/GPUTrace.h>

#include <cstdint>

#include "csrc_device/runtime/stream.hpp"

namespace vdev {

/// The calls that torch's tracer knows. The first argument of all but device_synchronization is the address
/// of the event, memory or stream. Records and waits have the stream as a second argument.
enum class TracedCall : std::uint8_t {
  event_creation,
  event_deletion,
  event_record,
  event_wait,
  memory_allocation,
  memory_deallocation,
  stream_creation,
  device_synchronization,
  stream_synchronization,
  event_synchronization,
};

/// Returns whether calls are traced. This is cheap.
inline bool traces_calls() noexcept {
  return c10::impl::GPUTrace::get_trace() != nullptr;
}

/// Returns the number by which the tracer knows `stream`: its native handle, or 0 for a default stream in
/// pose, as cuda_stream is.
std::uintptr_t traced_name(const Stream& stream) noexcept;
inline std::uintptr_t traced_name(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// Tells the tracer of a call, which runs Python and takes the GIL. So call it without any lock. Inside a
/// task it keeps the call for the next thread of the program that tells of a call: a thread that holds the
/// GIL may wait for the task.
void report_traced_call(TracedCall call, std::uintptr_t subject = 0, std::uintptr_t stream = 0) noexcept;

/// Tells the tracer of a call if there is one.
template <class Subject>
void trace_call(TracedCall call, const Subject& subject) noexcept {
  if (traces_calls()) [[unlikely]]
    report_traced_call(call, traced_name(subject));
}

/// Tells nothing any more. Call this when the interpreter exits.
void stop_tracing_calls() noexcept;

}  // namespace vdev
