#include "csrc_device/runtime/memory/host_ranges.hpp"

#include <algorithm>
#include <iterator>

namespace vdev {

void HostRanges::insert(HostRange range) {
  by_offset_.emplace(range.at, range.size);
  by_size_.emplace(range.size, range.at);
  bytes_ += range.size;
}

HostRanges::Place HostRanges::erase(Place place) {
  by_size_.erase({place->second, place->first});
  bytes_ -= place->second;
  return by_offset_.erase(place);
}

void HostRanges::add(HostRange range) {
  if (range.size == 0) return;
  auto next = by_offset_.lower_bound(range.at);
  if (next != by_offset_.end() && next->first == range.end()) {
    range.size += next->second;
    next = erase(next);
  }
  if (next != by_offset_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == range.at) {
      range = {before->first, before->second + range.size};
      erase(before);
    }
  }
  insert(range);
}

std::vector<HostRange> HostRanges::remove(HostRange range) {
  std::vector<HostRange> missing;
  std::size_t at = range.at;  // the offsets of `range` below `at` are done
  auto place = by_offset_.upper_bound(at);
  if (place != by_offset_.begin() && std::prev(place)->first + std::prev(place)->second > at) --place;
  while (at < range.end() && place != by_offset_.end() && place->first < range.end()) {
    const HostRange found{place->first, place->second};
    if (found.at > at) missing.push_back({at, found.at - at});
    place = erase(place);
    if (found.at < range.at) insert({found.at, range.at - found.at});
    if (found.end() > range.end()) insert({range.end(), found.end() - range.end()});
    at = std::min(found.end(), range.end());
  }
  if (at < range.end()) missing.push_back({at, range.end() - at});
  return missing;
}

std::vector<HostRange> HostRanges::remove_highest(std::size_t bytes) {
  std::vector<HostRange> removed;
  while (bytes > 0 && !by_offset_.empty()) {
    const auto last = std::prev(by_offset_.end());
    const HostRange found{last->first, last->second};
    const std::size_t part = std::min(bytes, found.size);
    erase(last);
    if (part < found.size) insert({found.at, found.size - part});
    removed.push_back({found.end() - part, part});
    bytes -= part;
  }
  return removed;
}

std::optional<HostRange> HostRanges::find(std::size_t size) const {
  const auto found = by_size_.lower_bound({size, 0});
  if (found == by_size_.end()) return std::nullopt;
  return HostRange{found->second, found->first};
}

}  // namespace vdev
