#include "csrc_device/runtime/blocks/segments.hpp"

#include <algorithm>
#include <iterator>

#include "csrc_device/runtime/blocks/block.hpp"
#include "csrc_device/runtime/memory/first_use.hpp"
#include "csrc_device/runtime/memory/page_budget.hpp"

namespace vdev {

FreeRanges::FreeRanges(std::size_t capacity) {
  if (capacity > 0) ranges_.emplace(0, capacity);
}

std::optional<std::size_t> FreeRanges::take(std::size_t size) {
  for (auto it = ranges_.begin(); it != ranges_.end(); ++it) {
    const auto [offset, room] = *it;
    if (room < size) continue;
    ranges_.erase(it);
    if (room > size) ranges_.emplace(offset + size, room - size);
    return offset;
  }
  return std::nullopt;
}

void FreeRanges::give_back(std::size_t offset, std::size_t size) {
  auto next = ranges_.lower_bound(offset);
  if (next != ranges_.end() && offset + size == next->first) {
    size += next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  ranges_.emplace(offset, size);
}

Segment::Segment(std::size_t o, std::size_t s, bool is_small)
    : offset(o), size(s), small(is_small), backed_((s + kGranule - 1) / kGranule, false) {}

std::vector<std::pair<std::size_t, std::size_t>> Segment::back(std::size_t from, std::size_t length) {
  std::vector<std::pair<std::size_t, std::size_t>> missing;
  const std::size_t end = (from - offset + length + kGranule - 1) / kGranule;
  for (std::size_t granule = (from - offset) / kGranule; granule < end; ++granule) {
    if (backed_[granule]) continue;
    backed_[granule] = true;
    const std::size_t at = offset + granule * kGranule;
    const std::size_t bytes = std::min(kGranule, offset + size - at);
    if (!missing.empty() && missing.back().first + missing.back().second == at) {
      missing.back().second += bytes;
    } else {
      missing.emplace_back(at, bytes);
    }
  }
  return missing;
}

void Segment::forget(const std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
  for (const auto& [at, bytes] : ranges) {
    for (std::size_t byte = 0; byte < bytes; byte += kGranule)
      backed_[(at - offset + byte) / kGranule] = false;
  }
}

Segments::Segments(Arena& arena, CardAccount account)
    : arena_(arena),
      account_(account),
      ranges_(arena.capacity() / kSegmentUnit * kSegmentUnit),
      limit_(arena.capacity()) {}

Segment* Segments::take(std::size_t size, bool small) {
  if (reserved_ > limit_ || size > limit_ - reserved_) return nullptr;
  const auto offset = ranges_.take(size);
  if (!offset) return nullptr;
  if (!account_.reserve(size)) {
    ranges_.give_back(*offset, size);
    return nullptr;
  }
  note_first_use();
  reserved_ += size;
  return segments_.emplace(*offset, std::make_unique<Segment>(*offset, size, small)).first->second.get();
}

void Segments::forget(const Segment* segment) {
  ranges_.give_back(segment->offset, segment->size);
  account_.give_back(segment->size);
  reserved_ -= segment->size;
  segments_.erase(segment->offset);
}

std::size_t Segments::left() const {
  return std::min({arena_.capacity() - reserved_, account_.left(), page_budget().room()});
}

void Segments::set_limit(std::size_t bytes) {
  limit_ = std::min(bytes, arena_.capacity());
}

}  // namespace vdev
