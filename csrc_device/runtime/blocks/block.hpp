// The allocator's blocks, and the requests for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "csrc_device/runtime/blocks/allocator_history.hpp"
#include "csrc_device/runtime/blocks/allocator_settings.hpp"
#include "csrc_device/runtime/sharing/ledger.hpp"

namespace vdev {

class Queue;
class Segment;
struct Pool;

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kSegmentUnit = 2 * kMiB;  // sizes and offsets of segments are multiples
inline constexpr std::size_t kBlockUnit = 512;         // sizes and offsets of blocks are multiples
inline constexpr std::size_t kSmallLimit = kMiB;       // blocks up to it share small segments

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
  std::uint64_t freed_at = 0;  // BlockCache::searches when the block became free
  int points_to_come = 0;
  std::vector<std::shared_ptr<Queue>> users;  // the queues of the streams that record_stream() named
  Lease lease;                                // generation 0: not lent
  std::size_t holds = 0;                      // of this process on its own lent block
  bool freed_while_lent = false;
  CallSite site;  // of the allocation, while the block is in use

  bool whole_segment() const { return !previous && !next; }
};

/// Says which blocks a function is to look at.
using BlockFilter = std::function<bool(const Block&)>;

/// Holds queues for the caller to destroy without the lock.
using Queues = std::vector<std::shared_ptr<Queue>>;

/// Describes what is asked of allocate().
struct BlockRequest {
  std::size_t bytes;
  std::size_t size;  // `bytes`, rounded up
  bool small;
  bool scratch;
  const AllocatorSettings& settings;
  CallSite site;
};

}  // namespace vdev
