// A card's allocator, which cuts blocks out of the arena and keeps freed blocks for the stream that used
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "csrc_device/runtime/allocator/allocator_snapshot.hpp"
#include "csrc_device/runtime/blocks/allocator_history.hpp"
#include "csrc_device/runtime/blocks/allocator_settings.hpp"
#include "csrc_device/runtime/blocks/allocator_stats.hpp"
#include "csrc_device/runtime/blocks/live_blocks.hpp"
#include "csrc_device/runtime/blocks/pool_number.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/memory/usage_table.hpp"
#include "csrc_device/runtime/sharing/ledger.hpp"
#include "csrc_device/runtime/stream.hpp"

namespace vdev {

/// Says who has asked for a block, and so in which figures it counts.
enum class Asker : std::uint8_t {
  program,
  kernel,  // counts as scratch until adopt()
};

/// Allocates with streams in mind, like CUDA's allocator. The stream for which a block was allocated may
/// reuse the block as soon as it is freed, as the stream's order makes that safe. The block is not reused
/// before every other stream that record_stream() named has passed the point of the free. The allocator takes
/// the best fit, splits blocks, and merges neighbours inside a segment. Sizes are multiples of 512 bytes.
/// Small blocks (up to 1 MiB) live in segments of 2 MiB, large blocks in segments of 20 MiB and more, as
/// allocator_settings() says. The allocator takes pages from the system in bulk, but only for blocks that it
/// hands out. Thread-safe.
class CachingAllocator {
 public:
  /// `account` says what other processes leave of the card's memory.
  explicit CachingAllocator(Arena& arena, int card, CardAccount account = {});
  ~CachingAllocator();

  /// Returns a block of `bytes` > 0 bytes from the pool `pool` of `queue`. While the queue
  /// is captured, the program's blocks come from the private pool of the capture, and between begin_pool()
  /// and end_pool() from that pool. The block is aligned to 512 bytes. Blocks of the scratch pool count as a
  /// kernel's. When there is no room, the call waits for blocks that other streams still
  /// use and does what empty_cache() does; if there is no room then, it throws OutOfMemory. Inside a task the
  /// call does not wait, and a request beyond the limit throws at once. Throws BadFork in a forked child, as
  /// do record_stream(), lend(), empty_cache() and set_limit(); the other members do nothing in a forked
  /// child.
  std::byte* allocate(std::size_t bytes, const std::shared_ptr<Queue>& queue, PoolNumber pool = kProgramPool,
                      Asker asker = Asker::program);
  std::byte* allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream,
                      PoolNumber pool = kProgramPool);
  /// Counts the live block at `p` as the program's from now on. Does nothing if it is already, or if there is
  /// no such block.
  void adopt(std::byte* p);
  /// Returns whether the live block at `p` is a kernel's.
  bool is_scratch(const std::byte* p) const;
  /// Takes the block that allocate() returned as `p` back into its pool, which lend() may delay. A block of
  /// the scratch pool is freed by a task of the block's stream, or when no task uses the block any more.
  /// Throws InvalidArgument for any other pointer. Never waits for a stream.
  void free(std::byte* p);
  /// Says that `stream` uses the block at `p`, too: once freed, the block is not reused before `stream` has
  /// passed the point of the free.
  void record_stream(std::byte* p, const std::shared_ptr<Stream>& stream);
  /// Returns the size of the block at `p`, as handed out, or 0 when no live block begins at `p`.
  std::size_t size_of(const std::byte* p) const;
  /// Returns the number of the pool that the block at `p` comes from, or kProgramPool when no live block
  /// begins at `p`.
  PoolNumber pool_of(const std::byte* p) const;
  /// Returns the parts of the range that lie in blocks which the program has, in the order of addresses.
  /// Looks at all live blocks.
  std::vector<LiveBlock> live_blocks(const std::byte* begin, const std::byte* end) const;

  /// Makes the caller a user of the private pool, which is made with its first user. The memory of a private
  /// pool stays reserved for it while it has users, even if all blocks are free: a graph that was captured
  /// writes to the blocks whenever it is replayed. With the last user gone, empty_cache() returns the free
  /// segments. The options are those of the pool's first user.
  void retain_pool(PoolNumber pool, PoolOptions options = {});
  /// Returns how many users the private pool has.
  std::size_t pool_users(PoolNumber pool) const;
  /// Makes the calling thread's allocations for the program come from the private pool, until end_pool(), and
  /// makes the thread a user of the pool meanwhile. Calls may be nested: the last one counts. What a captured
  /// stream allocates still comes from the pool of the capture.
  void begin_pool(PoolNumber pool);
  /// Ends the calling thread's last begin_pool() of that pool. Throws InvalidArgument if there is none.
  void end_pool(PoolNumber pool);
  /// Call this when `queue` gets tasks that use free blocks of the private pool. The pool's memory is not
  /// returned while the queue is busy.
  void use_pool(PoolNumber pool, const std::shared_ptr<Queue>& queue);
  /// Takes one user away. Does nothing in a forked child.
  void release_pool(PoolNumber pool) noexcept;

  /// Lends the live block that contains [p, p + bytes) to other processes, and counts one more message that
  /// names it in the ledger of this process. A lent block that is freed stays what it was, in the figures,
  /// too, until no message names it and nobody holds it. Throws InvalidArgument if no live block contains
  /// the range, and CardError.
  Lease lend(const std::byte* p, std::size_t bytes);
  /// Receives a message that came back to this process: holds the lent block, which may be freed by now.
  /// Returns the address of `offset`, which is that of the range in the arena. Returns null if the block is
  /// not lent any more, or does not contain the range.
  std::byte* hold(Lease lease, std::size_t offset, std::size_t bytes);
  void let_go(Lease lease);
  /// Frees the lent blocks that the program has freed, and that nobody needs any more.
  void collect_lent();

  /// Returns whole free segments to the system, once the tasks that may use them have run. The segments of
  /// private pools that have users stay. With `pool`, only those of this private pool.
  void empty_cache(std::optional<PoolNumber> pool = std::nullopt);
  /// Returns the bytes that may still be reserved: of the arena, of what other processes leave, and of what
  /// the machine can still give.
  std::size_t left() const;
  AllocatorStats stats() const;
  /// Returns what is reserved for each private pool, also for those that are gone (with current 0) until
  /// reset_accumulated_stats().
  std::map<PoolNumber, AllocatorStats::Figures> reserved_by_private_pool() const;
  void reset_accumulated_stats();
  void reset_peak_stats();
  /// Returns all segments, and what record_history() had recorded. With `notes_event` the snapshot is an
  /// event, too.
  AllocatorSnapshot snapshot(bool notes_event);
  /// Returns where the live block at `p` was allocated, or null if that is not known.
  CallSite site_of(const std::byte* p) const;
  void clear_history();
  /// Limits the reserved bytes (torch.vdev.set_per_process_memory_fraction). Without a call, the limit is the
  /// capacity.
  void set_limit(std::size_t bytes);

 private:
  struct Impl;
  struct Locked;
  PoolNumber program_pool(const Queue& queue);

  std::unique_ptr<Impl> impl_;
};

}  // namespace vdev
