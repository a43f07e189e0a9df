#include "sanitizer/memory/block.hpp"

#include <algorithm>
#include <utility>

namespace sanitizer {

void Block::add(const Access& access, const Action& action, const VectorClock& before,
                const std::function<void(const PastAccess&)>& race) {
  const auto comes_before = [&](const PastAccess& past) {
    const auto [lane, time] = std::pair(past.action.lane, past.action.time);
    if (lane == action.lane) return true;
    if (past.is_allocation && born) return before.includes(*born);
    return before.includes(lane, time) || (!past.is_allocation && reusable.includes(lane, time));
  };
  std::size_t kept = 0;
  for (std::size_t i = 0; i < past_.size(); ++i) {
    const PastAccess& past = past_[i];
    if (comes_before(past)) {
      if ((action.writes || !past.action.writes) && access.memory.covers(past.memory)) continue;
    } else if ((action.writes || past.action.writes) && access.memory.overlaps(past.memory)) {
      race(past);
    }
    if (kept != i) past_[kept] = std::move(past_[i]);
    ++kept;
  }
  past_.resize(kept);
  if (past_.size() == kMostAccesses) past_.erase(past_.begin());
  past_.push_back({access.memory, action});
  if (action.writes && allocated != 0) note_written(access.memory);
}

void Block::note_written(const Footprint& memory) {
  constexpr std::size_t most_pieces = 64;
  const auto has_all = [&](const Footprint& written) { return written.covers(memory); };
  if (all_written_ || std::ranges::any_of(written_, has_all)) return;
  std::erase_if(written_, [&](const Footprint& written) { return memory.covers(written); });
  written_.push_back(memory);
  if (written_.size() <= most_pieces) return;
  all_written_ = true;
  written_.clear();
}

bool Block::was_written(const Footprint& memory) const {
  return all_written_ ||
         std::ranges::any_of(written_, [&](const Footprint& written) { return written.overlaps(memory); });
}

}  // namespace sanitizer
