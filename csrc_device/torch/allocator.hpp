// torch's allocator for vdev, which hands out card memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "csrc_device/runtime/card.hpp"

namespace vdev {

/// Returns the allocator registered for vdev. Its allocate() takes memory from the current card, for that
/// card's current stream.
c10::DeviceAllocator* device_allocator();

/// Returns `bytes` of `card`'s memory for its current stream, or an empty pointer on that device for 0 bytes.
/// Raises torch.OutOfMemoryError, and ValueError for settings of PYTORCH_ALLOC_CONF that the cards refuse.
c10::DataPtr allocate_on(int card, std::size_t bytes, Asker asker = Asker::program);
/// Returns whether the memory of `data` goes with its last owner, as a peer's memory or another library's
/// does. A task that uses it later must own it, too. The allocator's own memory is reused in the order of the
/// stream. A pointer without a context owns nothing: torch asks whether the storages of persistent symmetric
/// memory have gone before it hands out the memory again.
bool goes_with_last_owner(const c10::DataPtr& data);
/// Makes memory that a kernel has allocated on `card` count as the program's (CachingAllocator::adopt).
void adopt_memory(int card, const c10::DataPtr& data);

/// Is told of a request that found no memory: the card, the bytes asked for, the card's capacity, and the
/// free part of it, in bytes.
using OutOfMemoryObserver =
    std::function<void(int card, std::size_t asked, std::size_t total, std::size_t free)>;
/// Calls `observer` from now on before torch.OutOfMemoryError is raised for a call of the program. Tasks that
/// run out of memory are not observed. Thread-safe.
void attach_out_of_memory_observer(OutOfMemoryObserver observer);

/// Calls `observer` from now on before the program's memory is freed, with the address of the block. There is
/// one observer in a process, and it must not throw. Thread-safe.
using FreeObserver = void (*)(void* block);
void watch_frees(FreeObserver observer) noexcept;

/// Does the same as allocate_on() for `queue`, and takes the memory from one of its pools. Makes the card if
/// needed.
c10::DataPtr allocate_for(int card, std::size_t bytes, const std::shared_ptr<Queue>& queue, PoolNumber pool,
                          Asker asker = Asker::program);

/// Makes `storage`, which is on a card, hold `bytes`. The storage gets new memory for the current stream. The
/// bytes that both memories hold are copied in the order of the current stream, and the old memory is freed
/// after that. 0 bytes free the memory and allocate none.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace vdev
