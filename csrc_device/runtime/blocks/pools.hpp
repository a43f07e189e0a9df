// The free blocks of the allocator, by stream and pool number, and who uses the private pools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>

#include "csrc_device/runtime/blocks/block.hpp"
#include "csrc_device/runtime/blocks/pool_number.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vdev {

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->offset < b->offset;
  }
};
using FreeBlocks = std::set<Block*, BySize>;

/// Holds the free blocks of one stream and one pool number. The pool keeps the Queue and not the Stream
/// alive, because the Stream's destructor runs the queued tasks, which may be any code.
struct Pool {
  std::shared_ptr<Queue> queue;
  PoolNumber number = kProgramPool;
  FreeBlocks small, large;
  std::size_t segments = 0;
  bool splits = true;

  std::int64_t stream() const { return queue->lane()->stream; }
  FreeBlocks& free_blocks(bool is_small) { return is_small ? small : large; }
  /// Takes the smallest free block that fits, and among equal ones the lowest, or returns null. As on CUDA,
  /// blocks that are too large to be split go to requests that are nearly as large.
  Block* take_fit(const BlockRequest& request);
  /// Returns the free blocks that are too large to be split and that make room for the request together: one
  /// that is as large, or else the largest ones. Returns nothing if there are not enough.
  std::set<const Block*> oversize_blocks_for(const BlockRequest& request) const;
};

/// Holds the pools of an allocator. Guarded by the allocator's mutex.
class Pools {
 public:
  /// Returns a pool, and makes it if there is none. A private pool must have had a user.
  Pool& of(const std::shared_ptr<Queue>& queue, PoolNumber number) {
    if (last_ && last_->queue == queue && last_->number == number) [[likely]]
      return *last_;
    return *(last_ = &find_or_make(queue, number));
  }
  std::size_t count() const { return pools_.size(); }
  template <class Each>
  void for_each(const Each& each) const {
    for (const auto& [key, pool] : pools_) each(*pool);
  }
  /// Moves the whole free segments of streams that are gone to `pool`. Those of private pools stay, because a
  /// graph may outlive the stream that it was captured on.
  void adopt_orphans(Pool& pool);

  bool has_private(PoolNumber number) const { return private_.contains(number); }
  /// Adds a user of a private pool, which is made with its first user.
  void retain(PoolNumber number, PoolOptions options);
  void release(PoolNumber number) noexcept;
  std::size_t users(PoolNumber number) const;
  /// Says that tasks of `queue` use free blocks of a private pool. Returns false if there is no such pool.
  bool use(PoolNumber number, const std::shared_ptr<Queue>& queue);
  /// Takes a free block of a private pool that may be used when there is no other room, or returns null. The
  /// pool's blocks are freed in the order of the host, as the program's are.
  Block* take_fit_of_private(const Pool& pool, const BlockRequest& request);

  /// Returns whether no task can use the free blocks of `pool`, now or later. Adds the queues whose tasks may
  /// use them for the time being to `busy`. The order of the stream has freed the blocks of a scratch pool,
  /// so no task uses them.
  bool may_lose_segments(const Pool& pool, Queues& busy) const;
  /// Forgets the private pools that have neither users nor memory.
  void forget_unused();

 private:
  struct Key {
    Queue* queue;
    PoolNumber number;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return std::hash<Queue*>()(key.queue) ^ (static_cast<std::size_t>(key.number) * 0x9e3779b97f4a7c15U);
    }
  };
  /// Holds who uses the private pools of one number.
  struct Private {
    PoolOptions options;
    std::size_t users = 0;
    Queues queues;  // those that use() named
  };

  Pool& find_or_make(const std::shared_ptr<Queue>& queue, PoolNumber number);

  std::unordered_map<Key, std::unique_ptr<Pool>, KeyHash> pools_;
  Pool* last_ = nullptr;  // what of() returned last, or null if that pool may be gone
  std::unordered_map<PoolNumber, Private> private_;
};

}  // namespace vdev
