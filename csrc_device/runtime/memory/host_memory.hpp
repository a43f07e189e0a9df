// Memory for CPU tensors that peers may map: an arena and the allocator of its blocks.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/memory/host_ranges.hpp"

namespace vdev {

/// Holds the figures of the allocator, in bytes and in blocks.
struct HostMemoryStats {
  std::size_t live_bytes = 0;    // handed out, in whole pages
  std::size_t live_blocks = 0;   // handed out
  std::size_t cached_bytes = 0;  // free memory that may have pages
  std::size_t capacity = 0;
};

/// Allocates blocks of shared memory without regard to streams: a freed block can be handed out again at
/// once. The allocator takes the best fit among the free ranges, which merge. Free memory keeps its pages up
/// to a bound, because getting a page costs far more than using it. Beyond the bound, the pages with the
/// highest addresses go back to the system, because best fit uses them least. Thread-safe.
class HostMemory {
 public:
  /// Free memory keeps at most so many bytes of pages, or a quarter of the bytes handed out if that is more.
  static constexpr std::size_t kMostCached = std::size_t{256} << 20;
  /// A block up to this size gets all its pages at once when it is allocated. A longer block gets each page
  /// when the page is touched, because such a block may be meant to stay mostly empty.
  static constexpr std::size_t kMostPopulated = std::size_t{1} << 30;

  /// Reserves `capacity` bytes of address space. Throws CardError when the system refuses.
  explicit HostMemory(std::size_t capacity, std::size_t most_cached = kMostCached);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  const Arena& arena() const { return arena_; }
  bool contains(const void* p) const { return arena_.contains(p); }

  /// Returns a block of whole pages for `bytes` > 0 bytes, with any contents. Returns null if there is no
  /// room, if the system has no pages left, and in a forked child.
  std::byte* allocate(std::size_t bytes);
  /// Takes back the block that allocate() returned as `p`, in this process or in its parent before the fork.
  /// Throws InvalidArgument for any other pointer.
  void free(std::byte* p);
  /// Returns the pages of free memory to the system.
  void empty_cache();
  HostMemoryStats stats() const;

  // Call these functions around fork(). The arena is shared, but a child must not see what its parent writes
  // afterwards, and the parent must not see what its child writes. before_fork() blocks every other user of
  // the memory. make_private() gives the child its own copies of the blocks in use, at the same addresses.
  // after_fork(), called in both processes, lets the users go on. The child can then free blocks, but not
  // allocate.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }
  /// Call this in the child, between before_fork() and after_fork(). Allocates nothing. Returns false when
  /// the system has no memory for the copies; the child must then end.
  bool make_private() noexcept;
  /// Returns true in a forked child of the process that made this memory, once make_private() was called.
  bool is_inherited() const { return inherited_; }

 private:
  static constexpr std::size_t kPage = 4096;
  bool populate(HostRange block, const std::vector<HostRange>& missing);
  bool copy_pages(HostRange used) noexcept;
  void discard(HostRange range) noexcept;
  std::size_t cache_bound() const;
  void give_pages_back(std::unique_lock<std::mutex>& lock, std::size_t bytes);

  Arena arena_;
  const std::size_t most_cached_;

  mutable std::mutex mutex_;  // guards the members below
  HostRanges free_;
  HostRanges cached_;                                  // the part of free_ that may have pages
  std::unordered_map<std::size_t, std::size_t> live_;  // offset -> size
  std::size_t live_bytes_ = 0;
  bool inherited_ = false;
};

}  // namespace vdev
