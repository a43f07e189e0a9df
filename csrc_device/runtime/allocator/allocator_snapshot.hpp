// What an allocator tells of its segments and blocks (torch.vdev.memory_snapshot).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc_device/runtime/blocks/allocator_history.hpp"
#include "csrc_device/runtime/blocks/pool_number.hpp"

namespace vdev {

struct Block;

struct BlockInfo {
  enum class State : std::uint8_t {
    allocated,
    awaiting_free,  // the program has freed it, but another stream or process may still use it
    inactive,
  };
  std::uintptr_t address;
  std::size_t size, requested;
  State state;
  CallSite site;  // of the allocation; null if it was not noted, or the block is free
};

/// Describes a segment. The blocks follow each other and fill the segment.
struct SegmentInfo {
  std::uintptr_t address;
  std::size_t size;
  std::int64_t stream;
  PoolNumber pool;
  bool small;
  CallSite site;
  std::vector<BlockInfo> blocks;
};

struct AllocatorSnapshot {
  std::vector<SegmentInfo> segments;  // in the order of their addresses
  std::vector<AllocatorEvent> events;
};

/// Describes the segments that consist of `blocks`. These are all blocks of an allocator, in the order of
/// their addresses. `base` is the address of the arena.
std::vector<SegmentInfo> describe_segments(const std::byte* base, const std::vector<Block*>& blocks);

}  // namespace vdev
