#include "csrc_device/torch/checks/gpu_trace.hpp"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/torch/device_type.hpp"

namespace vdev {
namespace {

struct Told {
  TracedCall call;
  std::uintptr_t subject, stream;
};

/// Holds the calls of tasks, in their order, until a thread of the program tells of them. A task frees memory
/// after it has put the call in here, and whoever gets the same memory next tells of the kept calls first. So
/// the tracer never hears of two allocations of one address without the deallocation between them.
struct KeptCalls {
  std::mutex mutex;
  std::vector<Told> calls;
};

KeptCalls& kept_calls() {
  static auto* kept = new KeptCalls;  // outlives every thread
  return *kept;
}

// Only the end of the process sets it. A thread that does not see it yet is as one that came before the end.
std::atomic<bool> is_stopped{false};

void tell(const c10::impl::PyInterpreterVTable& tracer, const Told& told) {
  const auto type = device_type();
  switch (told.call) {
    case TracedCall::event_creation:
      return tracer.trace_gpu_event_creation(type, told.subject);
    case TracedCall::event_deletion:
      return tracer.trace_gpu_event_deletion(type, told.subject);
    case TracedCall::event_record:
      return tracer.trace_gpu_event_record(type, told.subject, told.stream);
    case TracedCall::event_wait:
      return tracer.trace_gpu_event_wait(type, told.subject, told.stream);
    case TracedCall::memory_allocation:
      return tracer.trace_gpu_memory_allocation(type, told.subject);
    case TracedCall::memory_deallocation:
      return tracer.trace_gpu_memory_deallocation(type, told.subject);
    case TracedCall::stream_creation:
      return tracer.trace_gpu_stream_creation(type, told.subject);
    case TracedCall::device_synchronization:
      return tracer.trace_gpu_device_synchronization(type);
    case TracedCall::stream_synchronization:
      return tracer.trace_gpu_stream_synchronization(type, told.subject);
    case TracedCall::event_synchronization:
      return tracer.trace_gpu_event_synchronization(type, told.subject);
  }
}

}  // namespace

std::uintptr_t traced_name(const Stream& stream) noexcept {
  return pose() == Pose::cuda && stream.id() == 0 ? 0 : traced_name(static_cast<const void*>(&stream));
}

void report_traced_call(TracedCall call, std::uintptr_t subject, std::uintptr_t stream) noexcept {
  const auto* interpreter = c10::impl::GPUTrace::get_trace();
  if (interpreter == nullptr || is_stopped.load(std::memory_order_relaxed)) return;
  const Told told{call, subject, stream};
  std::vector<Told> earlier;
  {
    KeptCalls& kept = kept_calls();
    const std::lock_guard lock(kept.mutex);
    if (Queue::inside_task()) {
      kept.calls.push_back(told);
      return;
    }
    earlier = std::exchange(kept.calls, {});
  }
  // torch logs an exception of a callback, and throws nothing.
  for (const Told& other : earlier) tell(**interpreter, other);
  tell(**interpreter, told);
}

void stop_tracing_calls() noexcept {
  is_stopped.store(true, std::memory_order_relaxed);
}

}  // namespace vdev
