#include "csrc_device/runtime/blocks/lent_blocks.hpp"

namespace vdev {

Lease LentBlocks::lend(Block* block) {
  auto& ledger = process_ledger();
  if (block->lease.generation == 0) {
    block->lease = ledger.open();
    by_slot_.emplace(block->lease.slot, block);
  }
  ledger.add_message(block->lease);
  return block->lease;
}

Block* LentBlocks::find(Lease lease) const {
  const auto found = by_slot_.find(lease.slot);
  return found == by_slot_.end() || found->second->lease != lease ? nullptr : found->second;
}

bool LentBlocks::end_lease(Block* block) {
  if (block->lease.generation == 0) return true;
  if (block->holds != 0 || !process_ledger().try_close(block->lease)) return false;
  by_slot_.erase(block->lease.slot);
  block->lease = {};
  return true;
}

void LentBlocks::put_in_limbo(Block* block) {
  block->freed_while_lent = true;
  limbo_.push_back(block);
}

}  // namespace vdev
