// Translates torch's streams (a card number and an id) into the runtime's (shared objects), and back.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Stream.h>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_device/torch/device_type.hpp"

namespace vdev {

/// Returns the device of the card with that index.
inline c10::Device device_of(int card) {
  return c10::Device(device_type(), static_cast<c10::DeviceIndex>(card));
}

/// Returns the index of a device, or the calling thread's current card if the device has no index. Raises
/// RuntimeError for a device of another type. Does not check that the card exists.
int card_index(const c10::Device& device);

/// Returns torch's name for a stream of a card.
c10::Stream to_torch(const Stream& stream);
/// Returns the runtime's stream for torch's name, and makes the card if needed. Raises RuntimeError when the
/// stream is of another device type or no longer exists.
std::shared_ptr<Stream> from_torch(const c10::Stream& stream);

/// Returns torch's name for the calling thread's current stream on `card`. Makes no card.
c10::Stream current_torch_stream(int card);

/// Returns whether the calling thread's current stream on `card` is captured. Makes the card if needed.
bool is_captured(int card);

/// Blocks until everything enqueued on the card's streams has run, and raises their first error. Makes no
/// card.
void synchronize_card(int index);

/// Drains the streams that the program enqueues work on, of every card that is used, except captured ones.
/// Raises none of their errors.
void drain_used_cards();

}  // namespace vdev
