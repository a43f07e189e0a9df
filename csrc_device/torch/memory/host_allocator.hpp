// Pinned host memory: ordinary memory whose allocator remembers which streams still read or write it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace vdev {

/// Returns the allocator of pinned memory, which is also registered with at::setHostAllocator. Call its
/// record_event(ptr, ctx, stream) after every asynchronous copy from or to pinned memory was enqueued: a
/// freed block is handed out again only after these points. `ptr` may lie inside a block, and `ctx` may be
/// null. record_event() returns false when no pinned block holds `ptr`.
at::HostAllocator* pinned_allocator();

/// Returns whether `data` lies in a live pinned block, or in memory that the program has registered.
bool is_pinned(const void* data);

}  // namespace vdev
