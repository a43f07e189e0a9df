// Inside the caching allocator: blocks, pools, and what happens to them. caching_allocator.cpp hands blocks
// out and takes them back, caching_allocator_reclaim.cpp finds memory when there seems to be none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "csrc_device/runtime/caching_allocator.hpp"
#include "csrc_device/runtime/fork.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/segments.hpp"

namespace vdev {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kSegmentUnit = 2 * kMiB;  // sizes and offsets of segments are multiples

inline void add(AllocatorStats::Figure& figure, std::size_t amount) {
  const auto n = static_cast<std::int64_t>(amount);
  figure.current += n;
  figure.allocated += n;
  figure.peak = std::max(figure.peak, figure.current);
}

inline void take(AllocatorStats::Figure& figure, std::size_t amount) {
  const auto n = static_cast<std::int64_t>(amount);
  figure.current -= n;
  figure.freed += n;
}

struct Pool;

/// A piece of a segment. Neighbours in the segment are linked, so that free ones merge.
struct Block {
  std::size_t offset = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  Segment* segment = nullptr;
  Pool* pool = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  std::size_t backed = 0;  // so many bytes at its front are known to have their pages
  bool in_use = false;     // handed out, or freed with points to come
  int points_to_come = 0;
  std::vector<std::shared_ptr<Queue>> users;  // other streams that use it (record_stream)

  bool whole_segment() const { return !previous && !next; }
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->offset < b->offset;
  }
};

/// The free blocks of one stream. Holds the Queue and not the Stream, whose destructor could run anything.
struct Pool {
  std::shared_ptr<Queue> queue;
  std::set<Block*, BySize> small, large;
  std::size_t segments = 0;

  std::set<Block*, BySize>& free_blocks(bool is_small) { return is_small ? small : large; }
};

/// A freed block that a stream may still use, and the point of the stream from which it does not.
struct PendingFree {
  Block* block;
  Event point;
};

/// The members expect the mutex to be held; those that take the lock release it in between.
struct CachingAllocator::Impl {
  Impl(Arena& a, int c)
      : arena(a), card(c), ranges(a.capacity() / kSegmentUnit * kSegmentUnit), limit(a.capacity()) {}
  ~Impl();

  Block* find_free(Pool& pool, std::size_t size, bool small);
  Block* find_or_reserve(Pool& pool, std::size_t size, bool small);
  Block* reserve_segment(Pool& pool, std::size_t size, bool small);
  bool reserve_is_allowed(std::size_t size) const;
  Block* retry(std::unique_lock<std::mutex>& lock, Pool& pool, std::size_t size, bool small);
  void split(Block* block, std::size_t size, bool small);
  void merge(Block* block, Block* neighbour);
  void release_block(Block* block);
  void adopt_orphans(Pool& pool);
  std::vector<Event> collect_pending();
  void wait_for_pending(std::unique_lock<std::mutex>& lock);
  void return_segments(std::unique_lock<std::mutex>& lock);
  std::vector<std::shared_ptr<Queue>> return_idle_segments();
  void return_segment(Block* block);
  Pool& pool_of(const std::shared_ptr<Queue>& queue);
  [[noreturn]] void throw_out_of_memory(std::size_t bytes, const char* why = "");
  void unbook(Block* block);
  std::byte* hand_out(std::unique_lock<std::mutex>& lock, Block* block, std::size_t bytes, std::size_t size);
  bool usable() const { return generation == fork_generation(); }

  Arena& arena;
  const int card;
  const int generation = fork_generation();

  // Guards everything below. No stream is waited for under it, nor anything destroyed that is not ours.
  mutable std::mutex mutex;
  FreeRanges ranges;
  std::size_t limit;
  std::unordered_map<Queue*, std::unique_ptr<Pool>> pools;
  std::unordered_map<const std::byte*, Block*> live;  // handed out
  std::unordered_map<std::size_t, std::unique_ptr<Segment>> segments;
  std::unordered_map<Queue*, std::deque<PendingFree>> pending;
  AllocatorStats stats;
};

}  // namespace vdev
