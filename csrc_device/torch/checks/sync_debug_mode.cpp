#include "csrc_device/torch/checks/sync_debug_mode.hpp"

#include <c10/util/Exception.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

std::atomic<WaitingCalls> waiting_calls_mode{WaitingCalls::allowed};

void set_waiting_calls(WaitingCalls mode) noexcept {
  // Threads take over the mode at some time, which is all that is promised.
  waiting_calls_mode.store(mode, std::memory_order_relaxed);
}

WaitingCalls waiting_calls() noexcept {
  return waiting_calls_mode.load(std::memory_order_relaxed);
}

void report_waiting_call(const Stream& stream) {
  if (Queue::inside_task()) return;
  TORCH_CHECK(waiting_calls() != WaitingCalls::refused, "called a synchronizing ", device_title(),
              " operation");
  if (waiting_calls() == WaitingCalls::warned)
    TORCH_WARN("called a synchronizing ", device_title(), " operation");
  trace_call(TracedCall::stream_synchronization, stream);
}

void report_waiting_call(int card) {
  report_waiting_call(*current_stream(card));
}

}  // namespace vdev
