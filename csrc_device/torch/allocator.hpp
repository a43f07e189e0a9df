// Card memory as torch's allocator for vdev.
#pragma once

#include <cstddef>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

namespace vdev {

/// The allocator registered for vdev. allocate() takes from the current card, for its current stream.
c10::DeviceAllocator* device_allocator();

/// `bytes` of `card`'s memory for its current stream; an empty pointer on that device for 0 bytes.
/// Raises torch.OutOfMemoryError.
c10::DataPtr allocate_on(int card, std::size_t bytes);

/// Makes `storage` (on a card) hold `bytes`: new memory for the current stream, the common prefix copied in
/// the order of the current stream, the old memory freed after that. 0 frees and allocates nothing.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace vdev
