// Blocks that other processes use, too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "csrc_device/runtime/blocks/block.hpp"

namespace vdev {

/// Knows the lent blocks of an allocator by the slots of their leases. A lent block that the program frees
/// goes to limbo, until the ledger says that nobody needs it any more. Guarded by the allocator's mutex.
class LentBlocks {
 public:
  /// Counts one more message that names the block in the ledger of this process.
  Lease lend(Block* block);
  /// Returns the block with that lease, or null if it is not lent any more.
  Block* find(Lease lease) const;
  /// Returns the block of a lease that this process holds. Throws std::out_of_range if the slot is not lent,
  /// which means that the process let go more often than it held.
  Block* held(Lease lease) const { return by_slot_.at(lease.slot); }
  /// Returns whether nobody needs the block but its owner. The block is not lent afterwards.
  bool end_lease(Block* block);

  bool is_limbo_empty() const { return limbo_.empty(); }
  std::size_t limbo_size() const { return limbo_.size(); }
  /// Call this when the program has freed a block whose lease does not end.
  void put_in_limbo(Block* block);
  /// Looks at the `most` blocks that have been in limbo for longest since they were looked at. Takes those
  /// that nobody needs out, and calls `free` for each.
  template <class Free>
  void collect(std::size_t most, const Free& free) {
    for (most = std::min(most, limbo_.size()); most != 0; --most) {
      Block* block = limbo_.front();
      limbo_.pop_front();
      if (end_lease(block)) {
        block->freed_while_lent = false;
        free(block);
      } else {
        limbo_.push_back(block);
      }
    }
  }

 private:
  std::unordered_map<std::uint32_t, Block*> by_slot_;
  std::deque<Block*> limbo_;
};

}  // namespace vdev
