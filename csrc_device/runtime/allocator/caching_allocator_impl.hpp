// The inner parts of the caching allocator: blocks, pools, and the functions that change them.
// caching_allocator.cpp hands blocks out and takes them back, caching_allocator_reclaim.cpp finds memory when
// there seems to be none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fork.hpp"
#include "csrc_device/runtime/allocator/allocator_history.hpp"
#include "csrc_device/runtime/allocator/caching_allocator.hpp"
#include "csrc_device/runtime/allocator/segments.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kSegmentUnit = 2 * kMiB;  // sizes and offsets of segments are multiples
inline constexpr std::size_t kBlockUnit = 512;         // sizes and offsets of blocks are multiples
inline constexpr std::size_t kSmallLimit = kMiB;       // blocks up to it share small segments

inline void add(AllocatorStats::Figure& figure, std::size_t amount) {
  figure.current += static_cast<std::int64_t>(amount);
  figure.allocated += static_cast<std::int64_t>(amount);
  figure.peak = std::max(figure.peak, figure.current);
}

inline void take(AllocatorStats::Figure& figure, std::size_t amount) {
  figure.current -= static_cast<std::int64_t>(amount);
  figure.freed += static_cast<std::int64_t>(amount);
}

inline void add(AllocatorStats::Figures& figures, bool small, std::size_t amount) {
  add(static_cast<AllocatorStats::Figure&>(figures), amount);
  add(small ? figures.small_pool : figures.large_pool, amount);
}

inline void take(AllocatorStats::Figures& figures, bool small, std::size_t amount) {
  take(static_cast<AllocatorStats::Figure&>(figures), amount);
  take(small ? figures.small_pool : figures.large_pool, amount);
}

struct Pool;

/// Describes a part of a segment. Blocks that are neighbours in the segment are linked, so that free ones can
/// merge.
struct Block {
  std::size_t offset = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  Segment* segment = nullptr;
  Pool* pool = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  std::size_t backed = 0;      // the first `backed` bytes of the block are known to have pages
  bool in_use = false;         // handed out, or freed while another stream may still use it
  bool scratch = false;        // counts as scratch while it is in use
  bool oversize = false;       // counts as oversize while it is in use
  std::uint64_t born = 0;      // of MemoryClock, when the block was handed out
  std::uint64_t freed_at = 0;  // Impl::searches when the block became free
  int points_to_come = 0;
  std::vector<std::shared_ptr<Queue>> users;  // the queues of the streams that record_stream() named
  Lease lease;                                // generation 0: not lent
  std::size_t holds = 0;                      // of this process on its own lent block
  bool freed_while_lent = false;
  CallSite site;  // of the allocation, while the block is in use

  bool whole_segment() const { return !previous && !next; }
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->offset < b->offset;
  }
};

/// Holds the free blocks of one stream and one pool number. The pool keeps the Queue and not the Stream
/// alive, because the Stream's destructor runs the queued tasks, which may be any code.
struct Pool {
  std::shared_ptr<Queue> queue;
  PoolNumber number = kProgramPool;
  std::set<Block*, BySize> small, large;
  std::size_t segments = 0;
  bool splits = true;

  std::int64_t stream() const { return queue->lane()->stream; }

  std::set<Block*, BySize>& free_blocks(bool is_small) { return is_small ? small : large; }
};

/// Names a pool of a queue.
struct PoolKey {
  Queue* queue;
  PoolNumber number;
  bool operator==(const PoolKey&) const = default;
};

struct PoolKeyHash {
  std::size_t operator()(const PoolKey& key) const {
    return std::hash<Queue*>()(key.queue) ^ (static_cast<std::size_t>(key.number) * 0x9e3779b97f4a7c15U);
  }
};

/// Holds who uses the private pools of one number.
struct PrivatePool {
  PoolOptions options;
  std::size_t users = 0;
  std::vector<std::shared_ptr<Queue>> queues;  // the queues that use_pool() named
};

/// Pairs a freed block that a stream may still use with the point after which the stream no longer uses it.
struct PendingFree {
  Block* block;
  Event point;
};

/// Holds queues for the caller to destroy without the lock.
using Queues = std::vector<std::shared_ptr<Queue>>;

/// Describes what is asked of allocate().
struct Request {
  std::size_t bytes;
  std::size_t size;  // `bytes`, rounded up
  bool small;
  bool scratch;
  const AllocatorSettings& settings;
  CallSite site;
};

/// Says which blocks a function is to look at.
using BlockFilter = std::function<bool(const Block&)>;

/// The caller of every member function holds the mutex. A function that takes the lock as an argument may
/// release it in between.
struct CachingAllocator::Impl {
  Impl(Arena& a, int c, CardAccount u)
      : arena(a),
        card(c),
        account(u),
        ranges(a.capacity() / kSegmentUnit * kSegmentUnit),
        limit(a.capacity()) {}
  ~Impl();

  Block* find_free(Pool& pool, const Request& request);
  Block* find(Pool& pool, const Request& request, Queues& users);
  Block* reserve_segment(Pool& pool, const Request& request);
  bool reserve_is_allowed(std::size_t size) const;
  Block* retry(std::unique_lock<std::mutex>& lock, Pool& pool, const Request& request, Queues& users);
  Block* find_in_other_pools(const Pool& pool, const Request& request);
  void split(Block* block, const Request& request);
  void merge(Block* block, Block* neighbour);
  void release_block(Block* block);
  void free_block(Block* block, Queues& users, const CallSite& site = nullptr);
  Block* find_live(const std::byte* p, std::size_t bytes) const;
  bool end_lease(Block* block);
  void collect_lent(std::size_t most, Queues& users);
  void adopt_orphans(Pool& pool);
  std::vector<Event> collect_pending();
  void wait_for_pending(std::unique_lock<std::mutex>& lock);
  void return_segments(std::unique_lock<std::mutex>& lock, const BlockFilter& wanted = nullptr);
  void return_oversize_segments(std::unique_lock<std::mutex>& lock, const Pool& pool, const Request& request);
  void collect_garbage(std::unique_lock<std::mutex>& lock, const AllocatorSettings& settings);
  std::vector<std::shared_ptr<Queue>> return_idle_segments(const BlockFilter& wanted);
  void return_segment(Block* block);
  bool may_lose_segments(const Pool& pool, Queues& busy) const;
  void forget_private_pools();
  Pool& pool_of(const std::shared_ptr<Queue>& queue, PoolNumber number);
  std::size_t left() const;
  [[noreturn]] void throw_out_of_memory(const Request& request, const std::string& why = {});
  void book(Block* block);
  void unbook(Block* block);
  std::byte* hand_out(std::unique_lock<std::mutex>& lock, Block* block, const Request& request);
  void note(AllocatorEvent::Action action, const Block& block, const CallSite& site);
  AllocatorSnapshot snapshot() const;
  std::vector<AllocatorStats::Figure*> every_figure();

  Arena& arena;
  const int card;
  CardAccount account;
  const base::ProcessMark made;

  // Guards everything below. A thread that holds the mutex waits for no stream, and destroys no object that
  // does not belong to the allocator: the destructor could take other locks.
  mutable std::mutex mutex;
  FreeRanges ranges;
  std::size_t limit;
  std::unordered_map<PoolKey, std::unique_ptr<Pool>, PoolKeyHash> pools;
  std::unordered_map<PoolNumber, PrivatePool> private_pools;
  std::unordered_map<const std::byte*, Block*> live;  // the blocks that are handed out
  std::unordered_map<std::size_t, std::unique_ptr<Segment>> segments;
  std::unordered_map<Queue*, std::deque<PendingFree>> pending;
  std::unordered_map<std::uint32_t, Block*> lent;  // by the slot of the lease
  std::deque<Block*> limbo;                        // the lent blocks that the program has freed
  AllocatorStats stats;
  std::map<PoolNumber, AllocatorStats::Figures> reserved_by_pool;  // of private pools, also of those gone
  std::uint64_t searches = 0;  // requests that looked for a free block while garbage is collected
  AllocatorHistory history;
  std::vector<CallSite> gone;  // call sites that Locked destroys without the lock
};

/// Holds the lock of the allocator. What is given up meanwhile is destroyed when the lock has been released.
struct CachingAllocator::Locked {
  explicit Locked(Impl& allocator) : impl(allocator), lock(allocator.mutex) {}
  ~Locked() {
    if (lock.owns_lock()) gone.swap(impl.gone);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  Impl& impl;
  std::vector<CallSite> gone;
  std::vector<Event> reached;
  Queues users;
  std::unique_lock<std::mutex> lock;
};

}  // namespace vdev
