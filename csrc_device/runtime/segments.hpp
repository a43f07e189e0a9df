// The arena as the allocator sees it: free ranges, and segments of it that know which of their pages are
// backed.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace vdev {

/// The ranges of [0, capacity) that no segment has. First fit, merging on return. Not thread-safe.
class FreeRanges {
 public:
  explicit FreeRanges(std::size_t capacity);
  /// The lowest offset with room for `size`; nothing when there is none.
  std::optional<std::size_t> take(std::size_t size);
  void give_back(std::size_t offset, std::size_t size);

 private:
  std::map<std::size_t, std::size_t> ranges_;  // offset -> size; never adjacent
};

/// A contiguous range of the arena that blocks are cut from. Remembers, in granules, what was backed with
/// pages, so that memory is taken from the system in bulk but only where it was handed out. Not thread-safe.
class Segment {
 public:
  static constexpr std::size_t kGranule = 64 << 10;

  Segment(std::size_t offset, std::size_t size, bool small);

  const std::size_t offset;
  const std::size_t size;
  const bool small;

  /// Marks the granules under [from, from + length) (arena offsets) as backed and returns the ranges, as
  /// (offset, size), that were not.
  std::vector<std::pair<std::size_t, std::size_t>> back(std::size_t from, std::size_t length);
  /// Takes back what back() marked.
  void forget(const std::vector<std::pair<std::size_t, std::size_t>>& ranges);

 private:
  std::vector<bool> backed_;
};

}  // namespace vdev
