// Memory for CPU tensors that peers may map: an arena, and the allocator of its blocks.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "csrc_device/runtime/arena.hpp"
#include "csrc_device/runtime/host_ranges.hpp"

namespace vdev {

/// Bytes; counts of blocks.
struct HostMemoryStats {
  std::size_t live_bytes = 0;    // handed out, in whole pages
  std::size_t live_blocks = 0;   // handed out
  std::size_t cached_bytes = 0;  // free, and possibly with pages
  std::size_t capacity = 0;
};

/// Knows no streams: a freed block is anybody's at once. Best fit over the free ranges, which merge. Free
/// memory keeps its pages up to a bound, as those cost far more to get than to use; beyond it the pages with
/// the highest addresses, which best fit uses least, go back to the system. Thread-safe.
class HostMemory {
 public:
  /// What stays cached: the larger of `most_cached` and a quarter of what is handed out.
  static constexpr std::size_t kMostCached = std::size_t{256} << 20;
  /// A block up to this size has all its pages from the start, taken in bulk. The pages of a longer one come
  /// as they are touched: it may be meant to stay mostly empty.
  static constexpr std::size_t kMostPopulated = std::size_t{1} << 30;

  /// Throws Error when the system refuses.
  explicit HostMemory(std::size_t capacity, std::size_t most_cached = kMostCached);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  const Arena& arena() const { return arena_; }
  bool contains(const void* p) const { return arena_.contains(p); }

  /// A block of whole pages, with any bytes in it. Null where there is no room or the system has no pages
  /// left, and in a forked child. `bytes` > 0.
  std::byte* allocate(std::size_t bytes);
  /// `p` as returned by allocate(), here or before the fork; InvalidArgument otherwise.
  void free(std::byte* p);
  /// Returns the pages of free memory to the system.
  void empty_cache();
  HostMemoryStats stats() const;

  // Around fork(). The arena is shared, and a child must not see what its parent writes, nor the parent what
  // its child does: before_fork() holds everybody off, make_private() gives the child copies of the blocks
  // in use at the same addresses, and after_fork() in both lets everybody go on. From then on the child only
  // frees.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }
  /// In the child, between the two. Allocates nothing. False when the system has no memory for it: the child
  /// must not go on.
  bool make_private() noexcept;
  /// In the child, and before its parent's end() of the fork.
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

  mutable std::mutex mutex_;  // guards what follows
  HostRanges free_;
  HostRanges cached_;                                  // of free_
  std::unordered_map<std::size_t, std::size_t> live_;  // offset -> size
  std::size_t live_bytes_ = 0;
  bool inherited_ = false;
};

}  // namespace vdev
