// The arena as the allocator sees it: free ranges, and segments that know which of their pages are backed.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc_device/runtime/blocks/allocator_history.hpp"
#include "csrc_device/runtime/memory/arena.hpp"
#include "csrc_device/runtime/memory/usage_table.hpp"

namespace vdev {

/// Holds the ranges of [0, capacity) that belong to no segment. Takes the first fit, and merges ranges that
/// are given back. Not thread-safe.
class FreeRanges {
 public:
  explicit FreeRanges(std::size_t capacity);
  /// Takes the lowest range of `size` bytes that is free, and returns its offset. Returns nothing when there
  /// is none.
  std::optional<std::size_t> take(std::size_t size);
  void give_back(std::size_t offset, std::size_t size);

 private:
  std::map<std::size_t, std::size_t> ranges_;  // offset -> size; never adjacent
};

/// Describes a contiguous range of the arena from which blocks are cut. It records, in granules, which parts
/// are backed with pages, so that the allocator takes memory from the system in bulk, but only for blocks
/// that it hands out. Not thread-safe.
class Segment {
 public:
  static constexpr std::size_t kGranule = 64 << 10;

  Segment(std::size_t offset, std::size_t size, bool small);

  const std::size_t offset;
  const std::size_t size;
  const bool small;
  bool oversize = false;  // counts as oversize
  CallSite site;          // of the allocation for which the segment was taken

  /// Marks the granules that [from, from + length) touches as backed; `from` is an offset in the arena.
  /// Returns the ranges, as (offset, size), that were not backed before.
  std::vector<std::pair<std::size_t, std::size_t>> back(std::size_t from, std::size_t length);
  /// Marks `ranges`, which back() returned, as not backed.
  void forget(const std::vector<std::pair<std::size_t, std::size_t>>& ranges);

 private:
  std::vector<bool> backed_;
};

/// Takes segments from the arena and gives them back, as far as the limit and the other processes allow.
/// Guarded by the allocator's mutex.
class Segments {
 public:
  /// `account` says what other processes leave of the card's memory.
  Segments(Arena& arena, CardAccount account);

  /// Returns a new segment of `size` bytes, or null if there is no room.
  Segment* take(std::size_t size, bool small);
  /// Returns the pages of a segment to the system. May throw; the segment is unchanged then.
  void discard(const Segment& segment) { arena_.discard(segment.offset, segment.size); }
  /// Destroys a segment and makes its range free.
  void forget(const Segment* segment);

  std::size_t reserved() const { return reserved_; }
  /// Returns the bytes that may still be reserved: of the arena, of what other processes leave, and of what
  /// the machine can still give.
  std::size_t left() const;
  /// The limit of the reserved bytes, which is the capacity at first.
  std::size_t limit() const { return limit_; }
  void set_limit(std::size_t bytes);
  const CardAccount& account() const { return account_; }

 private:
  Arena& arena_;
  CardAccount account_;
  FreeRanges ranges_;
  std::size_t limit_;
  std::size_t reserved_ = 0;
  std::unordered_map<std::size_t, std::unique_ptr<Segment>> segments_;  // by offset
};

}  // namespace vdev
