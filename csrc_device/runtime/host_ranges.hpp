// Ranges of an address space, merged where they touch: what is free of the host arena, and what of that may
// have pages.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace vdev {

/// A range of offsets.
struct HostRange {
  std::size_t at = 0, size = 0;

  std::size_t end() const { return at + size; }
  bool operator==(const HostRange&) const = default;
};

/// A set of offsets, kept as ranges that neither overlap nor touch. Not thread-safe.
class HostRanges {
 public:
  /// Nothing of it may be in the set yet.
  void add(HostRange range);
  /// Takes all of `range` that is in the set out of it. Returns the parts that were not in it, in order.
  std::vector<HostRange> remove(HostRange range);
  /// Takes the `bytes` with the highest offsets out, or all there are. Returns them.
  std::vector<HostRange> remove_highest(std::size_t bytes);
  /// The smallest range that has room for `size`, of those the lowest; nothing where none has.
  std::optional<HostRange> find(std::size_t size) const;

  std::size_t bytes() const { return bytes_; }
  /// (offset, size), by offset.
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
