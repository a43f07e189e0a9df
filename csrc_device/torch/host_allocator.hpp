// Pinned host memory: ordinary memory that remembers which streams still read or write it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace vdev {

/// The pinned-memory allocator, also registered with at::setHostAllocator. Its record_event(ptr, ctx, stream)
/// must be called for every asynchronous copy from or to pinned memory, after the copy was enqueued: a block
/// that is freed is handed out again only after those points. `ptr` may lie inside a block and `ctx` may be
/// null; false when no pinned block holds `ptr`.
at::HostAllocator* pinned_allocator();

/// Whether `data` lies in a live pinned block.
bool is_pinned(const void* data);

}  // namespace vdev
