// Tells whether a task was enqueued before or after a block of memory changed hands.
#pragma once

#include <atomic>
#include <cstdint>

namespace vdev {

/// Counts the blocks that allocators hand out and take back in this process. A task keeps the number at its
/// enqueuing, and a block the number at its handing out. Memory that the program frees is reused by later
/// tasks of the stream while earlier tasks still wait for their turn; the numbers tell which owner a task is
/// about.
///
/// Relaxed: a thread that enqueues a task, frees a block or allocates one knows of the others' calls only if
/// the program has ordered them, and ordered calls see the numbers of one counter in that order.
class MemoryClock {
 public:
  static std::uint64_t now() noexcept { return count_.load(std::memory_order_relaxed); }
  static std::uint64_t next() noexcept { return count_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  static inline std::atomic<std::uint64_t> count_{1};
};

}  // namespace vdev
