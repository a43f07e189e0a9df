#include "csrc_device/runtime/allocator/allocator_snapshot.hpp"

#include "csrc_device/runtime/blocks/block.hpp"
#include "csrc_device/runtime/blocks/pools.hpp"
#include "csrc_device/runtime/blocks/segments.hpp"

namespace vdev {
namespace {

BlockInfo::State state_of(const Block& block) {
  if (!block.in_use) return BlockInfo::State::inactive;
  return block.freed_while_lent || block.points_to_come != 0 ? BlockInfo::State::awaiting_free
                                                             : BlockInfo::State::allocated;
}

}  // namespace

std::vector<SegmentInfo> describe_segments(const std::byte* base, const std::vector<Block*>& blocks) {
  std::vector<SegmentInfo> result;
  const Segment* current = nullptr;
  for (const Block* block : blocks) {
    const auto address = reinterpret_cast<std::uintptr_t>(base + block->offset);
    if (block->segment != current) {
      current = block->segment;
      result.push_back({.address = address,
                        .size = current->size,
                        .stream = block->pool->stream(),
                        .pool = block->pool->number,
                        .small = current->small,
                        .site = current->site,
                        .blocks = {}});
    }
    result.back().blocks.push_back({.address = address,
                                    .size = block->size,
                                    .requested = block->in_use ? block->requested : 0,
                                    .state = state_of(*block),
                                    .site = block->site});
  }
  return result;
}

}  // namespace vdev
