// The blocks of an allocator: how they are cut out of segments, handed out, freed and merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc_device/runtime/blocks/allocator_history.hpp"
#include "csrc_device/runtime/blocks/block.hpp"
#include "csrc_device/runtime/blocks/live_blocks.hpp"
#include "csrc_device/runtime/blocks/pending_frees.hpp"
#include "csrc_device/runtime/blocks/pools.hpp"
#include "csrc_device/runtime/blocks/segments.hpp"
#include "csrc_device/runtime/blocks/stats_keeper.hpp"
#include "csrc_device/runtime/event.hpp"

namespace vdev {

/// Keeps every block of an allocator in one of three places: among the live ones, which are handed out, among
/// the pending ones, which are freed and may still be used by another stream, or among the free ones of a
/// pool. Guarded by the allocator's mutex. Waits for nothing, and destroys no object that does not belong to
/// the allocator: the destructor could take other locks.
class BlockCache {
 public:
  BlockCache(Arena& arena, CardAccount account) : segments(arena, account), arena_(arena) {}
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  std::byte* address(const Block& block) const { return arena_.base() + block.offset; }

  /// Takes a new segment for the request, and returns it as one block. Returns null if there is no room.
  Block* take_segment(Pool& pool, const BlockRequest& request);
  /// Cuts what the request needs off the front of `block`, which is taken out of its pool. The rest becomes a
  /// free block, unless it is too small to be of use: no large request would fit in 1 MiB.
  void split(Block* block, const BlockRequest& request);
  /// Makes the block live.
  void hand_out(Block* block, const BlockRequest& request);
  /// Takes the block out of the live ones. The program's blocks stay active until make_free().
  void take_back(Block* block);
  /// Makes the block free. Call this when no stream but the block's own uses it any more.
  void make_free(Block* block);
  /// Frees a live block, which becomes free for use when the streams that use it have passed this point. The
  /// queues that used it go to `users`.
  void free(Block* block, Queues& users, const CallSite& site);
  /// Counts a live block of a kernel as the program's.
  void adopt(Block* block);

  /// Makes the pending blocks free whose points are all reached. Returns those points, for the caller to
  /// destroy without the lock.
  std::vector<Event> collect_pending();
  /// Returns the whole free segments that no task can use to the system, of those that are `wanted`, or of
  /// all if it is null. The result has the queues whose tasks may use the others.
  Queues return_idle_segments(const BlockFilter& wanted);

  /// Returns all blocks in the order of their addresses.
  std::vector<Block*> all() const;
  void note(AllocatorEvent::Action action, const Block& block, const CallSite& site);

  Segments segments;
  Pools pools;
  LiveBlocks live;
  PendingFrees pending;
  StatsKeeper stats;
  AllocatorHistory history;
  std::uint64_t searches = 0;  // requests that looked for a free block while garbage is collected

 private:
  void merge(Block* block, Block* neighbour);
  void return_segment(Block* block);

  Arena& arena_;
};

}  // namespace vdev
