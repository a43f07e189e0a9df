// Sets of address ranges that merge where they touch. The host arena uses one for its free memory, and one
// for the free memory that may have pages.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace vdev {

/// Describes the offsets from `at` up to, but without, end().
struct HostRange {
  std::size_t at = 0, size = 0;

  std::size_t end() const { return at + size; }
  bool operator==(const HostRange&) const = default;
};

/// Holds a set of offsets, as ranges that neither overlap nor touch. Not thread-safe.
class HostRanges {
 public:
  /// Adds a range, of which nothing may be in the set yet.
  void add(HostRange range);
  /// Removes everything in `range` from the set. Returns the subranges of `range` that were not in the set,
  /// in order.
  std::vector<HostRange> remove(HostRange range);
  /// Removes the `bytes` highest offsets from the set, or all offsets if there are fewer, and returns them.
  std::vector<HostRange> remove_highest(std::size_t bytes);
  /// Returns the smallest range that has room for `size`, and among equal ones the lowest. Returns nothing if
  /// no range has room.
  std::optional<HostRange> find(std::size_t size) const;

  std::size_t bytes() const { return bytes_; }
  /// Returns the ranges as (offset, size), sorted by offset.
  const std::map<std::size_t, std::size_t>& all() const { return by_offset_; }

 private:
  using Place = std::map<std::size_t, std::size_t>::iterator;
  void insert(HostRange range);
  Place erase(Place place);

  std::map<std::size_t, std::size_t> by_offset_;
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // (size, offset)
  std::size_t bytes_ = 0;
};

}  // namespace vdev
