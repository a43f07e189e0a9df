#include "csrc_device/torch/streams.hpp"

#include <c10/util/Exception.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/checks/gpu_trace.hpp"
#include "csrc_device/torch/checks/poisoned_cards.hpp"
#include "csrc_device/torch/races/watch.hpp"

namespace vdev {

int card_index(const c10::Device& device) {
  TORCH_CHECK(is_card(device), "Expected a ", device_name(), " device, got ", device);
  return device.has_index() ? device.index() : current_card();
}

c10::Stream to_torch(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, device_of(stream.card()), stream.id());
}

std::shared_ptr<Stream> from_torch(const c10::Stream& stream) {
  return card(card_index(stream.device())).stream(stream.id());
}

c10::Stream current_torch_stream(int card) {
  return c10::Stream(c10::Stream::UNSAFE, device_of(card), current_stream_id(card));
}

bool is_captured(int card) {
  return current_stream(card)->queue()->capture() != nullptr;
}

void synchronize_card(int index) {
  if (traces_calls()) [[unlikely]]
    report_traced_call(TracedCall::device_synchronization);
  // A card that was not used has nothing to wait for and need not be made. A bad index or a bad fork still
  // raises.
  if (index >= 0 && index < card_count() && !card_used(index) && !in_bad_fork()) {
    return;
  }
  const races::WaitClock wait;
  card(index).synchronize();
  if (races::is_on()) [[unlikely]]
    races::host_waits_for_card(index, wait.nanoseconds());
  check_usable(index);
}

void drain_used_cards() {
  for (int index = 0; index < card_count(); ++index) {
    if (card_used(index)) card(index).drain_program_streams(Captured::is_left_out);
  }
}

}  // namespace vdev
