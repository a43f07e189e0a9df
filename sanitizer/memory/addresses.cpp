#include "sanitizer/memory/addresses.hpp"

namespace sanitizer {
namespace {

std::uintptr_t number_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

// Returns the range that has the byte, or the end. Ranges do not overlap.
Addresses::Ranges::const_iterator Addresses::find(const Ranges& ranges, const void* byte) {
  auto it = ranges.upper_bound(number_of(byte));
  if (it == ranges.begin()) return ranges.end();
  --it;
  return number_of(byte) - it->first < it->second.bytes ? it : ranges.end();
}

void Addresses::allocated(const void* block, std::size_t bytes, Site site) {
  const std::uintptr_t begin = number_of(block);
  live_[begin] = {.bytes = bytes, .life = ++lives_, .allocated = site};
  if (gone_.empty()) return;
  auto it = find(gone_, block);
  if (it == gone_.end()) it = gone_.lower_bound(begin);
  while (it != gone_.end() && it->first < begin + bytes) it = gone_.erase(it);
}

bool Addresses::freed(const void* block) {
  const auto found = live_.find(number_of(block));
  if (found == live_.end()) return false;
  const Range range = found->second;
  live_.erase(found);
  if (gone_.size() == kMost) gone_.erase(gone_.begin());
  gone_[number_of(block)] = range;
  if (!range.asked_for) return false;
  if (ended_.size() == kMost) ended_.erase(ended_.begin());
  ended_[range.life] = 0;
  return true;
}

void Addresses::freed_at(const void* block, Site site) {
  const auto found = gone_.find(number_of(block));
  if (found == gone_.end()) return;
  found->second.freed = site;
  if (const auto end = ended_.find(found->second.life); end != ended_.end()) end->second = site;
}

std::optional<Owner> Addresses::owner_of(const void* byte) {
  const auto found = find(live_, byte);
  if (found == live_.end()) return std::nullopt;
  live_[found->first].asked_for = true;
  return Owner{reinterpret_cast<const void*>(found->first), found->second.life, found->second.allocated};
}

std::optional<Gone> Addresses::end_of(const Owner& owner) const {
  const auto found = ended_.find(owner.life);
  return found == ended_.end() ? std::nullopt : std::optional(Gone{owner.allocated, found->second});
}

std::optional<Gone> Addresses::gone_at(const void* byte) const {
  const auto found = find(gone_, byte);
  return found == gone_.end() ? std::nullopt
                              : std::optional(Gone{found->second.allocated, found->second.freed});
}

}  // namespace sanitizer
