// The arena as the allocator sees it: free ranges, and segments that know which of their pages are backed.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "csrc_device/runtime/allocator/allocator_history.hpp"

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

}  // namespace vdev
