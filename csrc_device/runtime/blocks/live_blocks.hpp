// The blocks that an allocator has handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace vdev {

struct Block;

/// Describes a range of memory that lies in one block, and when the block was handed out (MemoryClock).
struct LiveBlock {
  const std::byte *begin, *end;
  std::uint64_t born;
};

/// Finds blocks by their addresses. Guarded by the allocator's mutex.
class LiveBlocks {
 public:
  void add(const std::byte* at, Block* block) { blocks_.emplace(at, block); }
  void remove(const std::byte* at) { blocks_.erase(at); }
  /// Returns the block that begins at `p`, or null.
  Block* at(const std::byte* p) const {
    const auto found = blocks_.find(p);
    return found == blocks_.end() ? nullptr : found->second;
  }
  /// Returns the block that contains [p, p + bytes), or null.
  Block* containing(const std::byte* p, std::size_t bytes) const;
  /// Returns the parts of the range that lie in blocks which the program has, in the order of addresses.
  /// Looks at all blocks.
  std::vector<LiveBlock> in(const std::byte* begin, const std::byte* end) const;
  template <class Each>
  void for_each(const Each& each) const {
    for (const auto& [at, block] : blocks_) each(block);
  }

 private:
  std::unordered_map<const std::byte*, Block*> blocks_;
};

}  // namespace vdev
