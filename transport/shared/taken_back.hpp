// Memory that a rank takes back while peers may still be reading it.
//
// A rank that gives up first announces that: it records a failure, leaves, or withdraws from the operation.
// Then it writes to its memory again. A peer that reads the memory in place may be late, and then read the
// later bytes. It asks for announcements after its reads, and drops what it has read if there is one.
//
// Neither a store nor a load orders enough by itself. On x86 stores become visible in their order, but
// elsewhere a write may be seen before the announcement in front of it. Two fences pair: if a read before
// finish_reads() has seen a write behind announce_before_writes(), a load behind the one sees what was
// announced before the other.
#pragma once

#include <atomic>

namespace vccl {

// The thread sanitizer does not know fences, and nothing that it should see depends on these.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"

/// Call this after the reads of a peer's memory, and then look whether the peer has given up.
inline void finish_reads() noexcept {
  std::atomic_thread_fence(std::memory_order_acquire);
}

/// Call this after this rank has announced that it gives up, and before its memory is written again.
inline void announce_before_writes() noexcept {
  std::atomic_thread_fence(std::memory_order_release);
}

#pragma GCC diagnostic pop

}  // namespace vccl
