// Storages of cards that several processes use: torch.multiprocessing sends and receives them.
#pragma once

#include <c10/core/Storage.h>

#include "csrc_device/runtime/process_sharing.hpp"

namespace vdev {

/// Returns a message by which another process gets a storage over the same memory (share_range()). Blocks
/// until the streams that the program has used on the card have run their tasks, so that the receiver
/// finds the tasks done. This is more than CUDA does, where the receiver's stream waits for an event of the
/// sender's current stream: a queue pickles in a thread of its own, whose current stream is not the caller's.
/// Raises the failure of a collective that should have written the memory. Raises RuntimeError for memory
/// that the cards' allocator has not handed out.
SharedRange share_storage(const c10::Storage& storage);

/// Receives a message (receive_range()). While the storage of an earlier message about the same memory is
/// alive, the result is that storage. In the process that owns the memory, it is the owner's storage. A
/// storage over another process's memory cannot be resized, and this process's figures do not count it.
c10::Storage receive_storage(const SharedRange& range);

}  // namespace vdev
