#include "sanitizer/processes/shared_past.hpp"

#include <algorithm>

namespace sanitizer {

void SharedPast::take(JournalRecord record) {
  if (record.publication) {
    auto& publication = *record.publication;
    Points& points = published_[publication.meeting][record.process];
    points.by_number.insert_or_assign(publication.number, std::move(publication.clock));
    if (points.by_number.size() <= kMostPoints) return;
    points.by_number.erase(points.by_number.begin());
    points.has_forgotten = true;
    return;
  }
  auto& past = accesses_[record.access->block];
  Known known{record.process, std::move(*record.access)};
  const SharedAccess& access = known.access;
  if (record.process == own_ && !past.empty()) {
    const Before its_past = before(access.clock);
    for (const Known& earlier : past) judge(earlier, known, its_past);
  }
  const auto lane = access.lane;
  if (past.size() == kMostAccesses) past.pop_front();
  past.push_back(std::move(known));
  std::deque<Known> kept;
  for (const Known& earlier : past)
    if (earlier.access.lane != lane || !is_replaced(earlier, past)) kept.push_back(earlier);
  if (kept.size() != past.size()) past = std::move(kept);
}

// A third access that races with the earlier one has to race with the later one as well. It does, unless it
// may still turn out to come before the later one, through a meeting that the earlier one is not behind.
bool SharedPast::is_replaced(const Known& earlier, const std::deque<Known>& past) const {
  const SharedAccess& old = earlier.access;
  return std::ranges::any_of(past, [&](const Known& known) {
    const SharedAccess& access = known.access;
    return access.lane == old.lane && access.time > old.time && (access.writes || !old.writes) &&
           access.memory.covers(old.memory) && have_all_come_to_more(old.clock, access.clock);
  });
}

bool SharedPast::have_all_come_to_more(const SharedClock& less, const SharedClock& more) const {
  return std::ranges::all_of(more, [&](const ClockEntry& entry) {
    if (entry.publishers == 0) return true;
    const bool is_old = std::ranges::any_of(
        less, [&](const ClockEntry& old) { return old.lane == entry.lane && old.time == entry.time; });
    const auto found = published_.find(entry.lane);
    if (is_old || found == published_.end()) return is_old;
    const auto have_come = std::ranges::count_if(found->second, [&](const auto& member) {
      return member.second.by_number.rbegin()->first >= entry.time;
    });
    return static_cast<std::uint32_t>(have_come) >= entry.publishers;
  });
}

std::vector<SharedRace> SharedPast::races() {
  const auto pairs = std::exchange(undecided_, {});
  for (const auto& [first, second] : pairs) judge(first, second, before(second.access.clock));
  return std::exchange(races_, {});
}

void SharedPast::judge(const Known& first, const Known& second, const Before& before_second) {
  if (first.process == second.process) return;
  if (!first.access.writes && !second.access.writes) return;
  if (!first.access.memory.overlaps(second.access.memory)) return;
  switch (order(first, second, before_second)) {
    case Order::yes:
      return;
    case Order::no:
      races_.push_back({first.access, second.access});
      return;
    case Order::unknown:
      if (undecided_.size() < kMostPairs) undecided_.emplace_back(first, second);
  }
}

SharedPast::Order SharedPast::order(const Known& first, const Known& second,
                                    const Before& before_second) const {
  const auto includes = [](const Before& before, const SharedAccess& access) {
    const auto found = before.times.find(access.lane);
    return found != before.times.end() && found->second >= access.time;
  };
  if (includes(before_second, first.access)) return Order::yes;
  // A process that has gone on past a meeting may act before another one has come there, in its own order.
  const Before before_first = before(first.access.clock);
  if (includes(before_first, second.access)) return Order::yes;
  const bool is_known =
      is_complete(before_second, first.process) && is_complete(before_first, second.process);
  return is_known ? Order::no : Order::unknown;
}

SharedPast::Before SharedPast::before(const SharedClock& clock) const {
  Before before;
  std::vector<const SharedClock*> left{&clock};
  while (!left.empty()) {
    const SharedClock& next = *left.back();
    left.pop_back();
    for (const ClockEntry& entry : next) {
      if (entry.publishers == 0) {
        Time& time = before.times[entry.lane];
        time = std::max(time, entry.time);
        continue;
      }
      auto& meeting = before.meetings[entry.lane];
      if (meeting.time >= entry.time) continue;
      meeting = entry;
      const auto found = published_.find(entry.lane);
      if (found == published_.end()) continue;
      // What a member publishes later includes what it has published before.
      for (const auto& [process, points] : found->second) {
        const auto behind = points.by_number.upper_bound(entry.time);
        if (behind != points.by_number.begin()) left.push_back(&std::prev(behind)->second);
      }
    }
  }
  return before;
}

bool SharedPast::is_complete(const Before& before, ProcessNumber process) const {
  return std::ranges::all_of(before.meetings, [&](const auto& entry) {
    const ClockEntry& meeting = entry.second;
    const auto found = published_.find(meeting.lane);
    if (found == published_.end()) return false;
    std::uint32_t have_come = 0;
    for (const auto& [member, points] : found->second) {
      const bool has_come = points.by_number.rbegin()->first >= meeting.time &&
                            !(points.has_forgotten && points.by_number.begin()->first > meeting.time);
      if (has_come && member == process) return true;
      have_come += has_come;
    }
    return have_come >= meeting.publishers;
  });
}

SharedClock SharedPast::published(LaneNumber meeting) const {
  SharedClock all;
  const auto found = published_.find(meeting);
  if (found == published_.end()) return all;
  for (const auto& [process, points] : found->second) {
    const auto& last = points.by_number.rbegin()->second;
    all.insert(all.end(), last.begin(), last.end());
  }
  return all;
}

}  // namespace sanitizer
