#include "csrc_device/runtime/blocks/live_blocks.hpp"

#include <algorithm>

#include "csrc_device/runtime/blocks/block.hpp"

namespace vdev {

Block* LiveBlocks::containing(const std::byte* p, std::size_t bytes) const {
  const auto contains = [&](const auto& entry) {
    const auto before = static_cast<std::size_t>(p - entry.first);
    return p >= entry.first && before <= entry.second->size && bytes <= entry.second->size - before;
  };
  // A storage almost always begins where its block does.
  if (const auto found = blocks_.find(p); found != blocks_.end())
    return contains(*found) ? found->second : nullptr;
  const auto found = std::ranges::find_if(blocks_, contains);
  return found == blocks_.end() ? nullptr : found->second;
}

std::vector<LiveBlock> LiveBlocks::in(const std::byte* begin, const std::byte* end) const {
  std::vector<LiveBlock> found;
  for (const auto& [at, block] : blocks_) {
    if (at >= end || at + block->size <= begin || (block->freed_while_lent && block->holds == 0)) continue;
    found.push_back({std::max(at, begin), std::min(at + block->size, end), block->born});
  }
  std::ranges::sort(found, {}, &LiveBlock::begin);
  return found;
}

}  // namespace vdev
