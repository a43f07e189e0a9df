// torch's streams (a card number and an id) and the runtime's (shared objects), one for the other.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Stream.h>

#include "csrc_device/runtime/stream.hpp"

namespace vdev {

/// The device `vdev:card`.
inline c10::Device device_of(int card) {
  return c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(card));
}

/// The card a device means: its index, or the calling thread's current card when it has none.
/// Raises RuntimeError for a device of another type. Does not check that the card exists.
int card_index(const c10::Device& device);

/// Raises RuntimeError unless there is a card of that number. Makes none.
void check_card(int index);

/// torch's name for a stream of a card.
c10::Stream to_torch(const Stream& stream);
/// The runtime's stream behind torch's name; makes the card if needed. Raises RuntimeError when the stream is
/// of another device type or no longer exists.
std::shared_ptr<Stream> from_torch(const c10::Stream& stream);

/// The calling thread's current stream on `card`, as torch's name for it. Makes no card.
c10::Stream current_torch_stream(int card);

/// Waits for everything enqueued on the card's streams and raises their first error. Makes no card.
void synchronize_card(int index);

}  // namespace vdev
