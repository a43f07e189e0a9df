#include "sanitizer/detector.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

namespace sanitizer {

std::uint64_t Detector::next_number() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

Point Detector::point_from(VectorClock clock) const {
  clock.detector = number_;
  return std::make_shared<const VectorClock>(std::move(clock));
}

Point Detector::point(Lane lane) {
  const std::lock_guard lock(mutex_);
  return point_of(state(lane));
}

Point Detector::point_of(LaneState& its) {
  if (!its.last) its.last = point_from(its.clock);
  return its.last;
}

bool Detector::join(Lane lane, const VectorClock& clock) {
  LaneState& its = state(lane);
  if (!its.clock.join(clock)) return false;
  its.has_waited = true;
  ++its.version;
  its.last = nullptr;
  return true;
}

bool Detector::wait(Lane lane, const Point& point) {
  if (!has_made(point)) return false;
  const std::lock_guard lock(mutex_);
  return join(lane, *point);
}

bool Detector::wait(Lane lane, Lane other) {
  if (lane == other) return false;
  const std::lock_guard lock(mutex_);
  LaneState& its = state(lane);
  const LaneState& theirs = state(other);
  // A stream waits at each launch for the same thread, which has done little in between.
  if (its.waited_for == other && its.waited_version == theirs.version) {
    const Time time = theirs.clock[other];
    if (its.clock[other] >= time) return false;
    its.clock.set(other, time);
    its.has_waited = true;
    ++its.version;
    its.last = nullptr;
    return true;
  }
  its.waited_for = other;
  its.waited_version = theirs.version;
  return join(lane, theirs.clock);
}

std::vector<Race> Detector::access(Lane lane, Site site, std::span<const Access> accesses) {
  const std::lock_guard lock(mutex_);
  LaneState& its = state(lane);
  const Time time = its.clock[lane] + 1;
  its.clock.set(lane, time);
  its.has_waited = false;
  its.last = nullptr;
  return add(lane, time, its.clock, site, accesses);
}

std::vector<Race> Detector::access(Lane lane, const Point& before, Site site,
                                   std::span<const Access> accesses) {
  const std::lock_guard lock(mutex_);
  return add(lane, (*before)[lane], *before, site, accesses);
}

std::vector<Race> Detector::add(Lane lane, Time time, const VectorClock& before, Site site,
                                std::span<const Access> accesses) {
  std::vector<Race> races;
  for (const Access& access : accesses) {
    if (access.memory.empty()) continue;
    Block& block = blocks_[access.block];
    const Action action{lane, time, site, access.writes};
    std::optional<PastAccess> found;
    block.add(access, action, before, [&](const PastAccess& past) {
      // The last one says most: a repair of its order mostly repairs that of those before it, too.
      found = past;
    });
    if (found) races.push_back({found->action, action, access.number, block.allocated, found->freed});
  }
  return races;
}

std::vector<Race> Detector::unwritten(Lane lane, Site site, std::span<const Access> accesses) {
  const std::lock_guard lock(mutex_);
  std::vector<Race> found;
  for (const Access& access : accesses) {
    if (access.memory.empty() || (access.writes && !access.reads_first)) continue;
    const auto block = blocks_.find(access.block);
    if (block == blocks_.end() || block->second.allocated == 0) continue;
    if (block->second.was_written(access.memory)) continue;
    found.push_back({{}, {lane, 0, site, false}, access.number, block->second.allocated, 0});
  }
  return found;
}

void Detector::allocated(const void* block, std::size_t bytes, Lane stream, Site site) {
  const std::lock_guard lock(mutex_);
  Block& fresh = blocks_[block] = Block();
  fresh.bytes = bytes;
  fresh.stream = stream;
  fresh.allocated = site;
  addresses_.allocated(block, bytes, site);
  const Footprint all(block, bytes);
  LaneState& its = state(stream);
  if (its.has_waited) fresh.born = point_of(its);
  const Time time = its.clock[stream];
  if ((time != 0 || fresh.born) && bytes != 0) fresh.inherit({all, {stream, time, site, true}, 0, true});
  if (freed_.empty()) [[likely]] {
    return;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(block);
  for (auto it = freed_.lower_bound(begin - std::min(begin, longest_freed_));
       it != freed_.end() && it->first < begin + bytes;) {
    Block& old = it->second;
    if (old.stream != stream) {
      std::erase_if(old.past(), [&](const PastAccess& past) { return past.memory.overlaps(all); });
    } else {
      for (const PastAccess& past : old.past()) {
        if (!past.memory.overlaps(all)) continue;
        fresh.inherit(past);
        fresh.reusable.join(old.reusable);
      }
      std::erase_if(old.past(), [&](const PastAccess& past) { return all.covers(past.memory); });
    }
    it = old.past().empty() ? freed_.erase(it) : std::next(it);
  }
}

void Detector::keep_for(const void* block, Lane stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  auto& lanes = found->second.kept_for;
  if (std::ranges::find(lanes, stream) == lanes.end()) lanes.push_back(stream);
}

void Detector::hold(const void* block, const Point& end) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end() || !has_made(end)) return;
  auto& held = found->second.held;
  // Ends that come before this one say nothing more: a program may wait for none of many operations.
  std::erase_if(held, [&](const Point& other) { return !VectorClock(*end).join(*other); });
  held.push_back(end);
}

void Detector::let_go(const void* block, const Point& end) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  if (found != blocks_.end()) std::erase(found->second.held, end);
}

bool Detector::freed(const void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return false;
  Block old = std::move(found->second);
  blocks_.erase(found);
  if (old.allocated == 0) return false;
  const bool has_pointers = addresses_.freed(block);
  for (const Lane lane : old.kept_for) old.reusable.join(state(lane).clock);
  for (const Point& end : old.held) old.reusable.join(*end);
  // Whoever gets the memory next works on the same stream, behind what that has done by now.
  const VectorClock& own = state(old.stream).clock;
  std::erase_if(old.past(), [&](const PastAccess& past) {
    const auto [lane, time] = std::pair(past.action.lane, past.action.time);
    return lane == old.stream || own.includes(lane, time) || old.reusable.includes(lane, time);
  });
  if (old.past().empty()) return has_pointers;
  longest_freed_ = std::max(longest_freed_, old.bytes);
  if (freed_.size() == kMostFreed) freed_.erase(freed_.begin());
  freed_.emplace(reinterpret_cast<std::uintptr_t>(block), std::move(old));
  return true;
}

void Detector::freed_at(const void* block, Site site) {
  const std::lock_guard lock(mutex_);
  addresses_.freed_at(block, site);
  const auto [first, last] = freed_.equal_range(reinterpret_cast<std::uintptr_t>(block));
  for (auto it = first; it != last; ++it) {
    for (PastAccess& past : it->second.past())
      if (past.freed == 0) past.freed = site;
  }
}

void Detector::released() {
  const std::lock_guard lock(mutex_);
  freed_.clear();
  addresses_.forget_gone();
}

std::optional<Owner> Detector::owner_of(const void* byte) {
  const std::lock_guard lock(mutex_);
  return addresses_.owner_of(byte);
}

std::optional<Gone> Detector::end_of(const Owner& owner) {
  const std::lock_guard lock(mutex_);
  return addresses_.end_of(owner);
}

std::optional<Gone> Detector::gone_at(const void* byte) {
  const std::lock_guard lock(mutex_);
  return addresses_.gone_at(byte);
}

void Detector::forget(const void* block) {
  const std::lock_guard lock(mutex_);
  blocks_.erase(block);
}

std::vector<PastAccess> Detector::past_of(const void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block);
  return found != blocks_.end() ? found->second.past() : std::vector<PastAccess>();
}

std::vector<Access> Detector::remembered() {
  const std::lock_guard lock(mutex_);
  std::vector<Access> all;
  for (const auto& [base, block] : blocks_) {
    for (const PastAccess& past : block.past())
      if (!past.is_allocation)
        all.push_back({base, past.memory, past.action.writes, past.action.site, false});
  }
  return all;
}

}  // namespace sanitizer
