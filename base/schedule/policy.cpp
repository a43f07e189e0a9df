#include "base/schedule/policy.hpp"

#include <algorithm>

#include "base/hash.hpp"

namespace base::schedule {
namespace {

// PCT draws the steps at which priorities change from the length of a run. It is not known before, so it is
// drawn, too: from the shortest one, or that one doubled up to so often.
constexpr std::uint64_t kShortestRun = 8, kDoublingsOfSteps = 7;
constexpr std::uint64_t kFewestOperations = 4, kDoublingsOfOperations = 6;
// The longest time for which a process is held up before an operation. It is longer than what an operation
// takes, so that the others are ahead by more than one.
constexpr std::uint64_t kLongestDelay = 2'000'000;
constexpr std::uint64_t kOneInDelayed = 4;

/// Draws the steps at which something changes, `count` of them. The others become 0, which no step is.
void draw_changes(std::array<std::uint64_t, kMostDepth>& changes, int count, std::uint64_t& sequence,
                  std::uint64_t shortest, std::uint64_t doublings) noexcept {
  changes = {};
  const std::uint64_t length = shortest << draw(sequence, doublings);
  for (int i = 0; i < count; ++i) changes[static_cast<std::size_t>(i)] = 1 + draw(sequence, length);
}

/// Orders slots by what does not depend on when a thread came into the table.
bool comes_before(const Slot& left, const Slot& right) noexcept {
  return left.process != right.process ? left.process < right.process : left.number < right.number;
}

struct Candidates {
  std::array<int, kMostThreads> slots;
  int count = 0;

  void add(int slot) noexcept { slots[static_cast<std::size_t>(count++)] = slot; }
};

/// Returns the threads that could go on, in an order that is the same in each run.
Candidates candidates_of(const Table& table, bool only_new) noexcept {
  Candidates found;
  for (int i = 0; i < kMostThreads; ++i) {
    const Slot& slot = table.slots[static_cast<std::size_t>(i)];
    const bool can = slot.state == State::ready || slot.state == State::coming;
    const bool in_vain = slot.polls && slot.polled == table.progress;
    if (can && !(only_new && in_vain)) found.add(i);
  }
  std::sort(found.slots.begin(), found.slots.begin() + found.count, [&](int left, int right) {
    return comes_before(table.slots[static_cast<std::size_t>(left)],
                        table.slots[static_cast<std::size_t>(right)]);
  });
  return found;
}

/// Returns who asks in vain next: they take turns, without a draw, because how often they ask depends on
/// time.
int next_that_asks(const Table& table, const Candidates& all) noexcept {
  for (int i = 0; i < all.count; ++i)
    if (all.slots[static_cast<std::size_t>(i)] > table.last) return all.slots[static_cast<std::size_t>(i)];
  return all.slots[0];
}

int chosen_by_priority(Table& table, const Candidates& among) noexcept {
  if (table.last >= 0) {
    Slot& last = table.slots[static_cast<std::size_t>(table.last)];
    for (int i = 0; i < table.depth - 1; ++i)
      if (table.changes[static_cast<std::size_t>(i)] == table.steps) last.priority = table.depth - i;
  }
  return *std::max_element(among.slots.begin(), among.slots.begin() + among.count, [&](int left, int right) {
    return table.slots[static_cast<std::size_t>(left)].priority <
           table.slots[static_cast<std::size_t>(right)].priority;
  });
}

}  // namespace

std::uint64_t draw(std::uint64_t& sequence, std::uint64_t below) noexcept {
  sequence += 0x9e3779b97f4a7c15;
  return mix_bits(sequence) % below;
}

void draw_beginning(Table& table) noexcept {
  table.random = mix_bits(table.seed);
  draw_changes(table.changes, table.depth - 1, table.random, kShortestRun, kDoublingsOfSteps);
}

std::int64_t first_priority(const Table& table, std::int32_t process, std::uint32_t number) noexcept {
  const std::uint64_t place = (static_cast<std::uint64_t>(process) << 32) + number;
  // Above the priorities after a change, which are at most kMostDepth.
  return static_cast<std::int64_t>((mix_bits(table.seed ^ mix_bits(place)) >> 2) | (std::uint64_t{1} << 61));
}

int choose(Table& table) noexcept {
  const Candidates all = candidates_of(table, false);
  if (all.count == 0) return kNobody;
  for (int i = 0; i < all.count; ++i) {
    const int slot = all.slots[static_cast<std::size_t>(i)];
    if (table.slots[static_cast<std::size_t>(slot)].timed_out) return slot;
  }
  const Candidates fresh = candidates_of(table, true);
  if (fresh.count == 0) return next_that_asks(table, all);
  int slot = fresh.slots[0];
  if (fresh.count > 1) {
    ++table.steps;
    slot = table.kind == Kind::pct ? chosen_by_priority(table, fresh)
                                   : fresh.slots[draw(table.random, static_cast<std::uint64_t>(fresh.count))];
    const Slot& found = table.slots[static_cast<std::size_t>(slot)];
    const std::uint64_t place = (static_cast<std::uint64_t>(found.process) << 32) + found.number;
    table.trace = mix_bits(table.trace ^ mix_bits(place));
  }
  return slot;
}

Delays::Delays(const Plan& plan) noexcept
    : kind_(plan.kind), random_(mix_bits(plan.seed ^ mix_bits(static_cast<std::uint64_t>(plan.process)))) {
  if (kind_ != Kind::pct) return;
  lag_ = any();
  draw_changes(changes_, plan.depth - 1, random_, kFewestOperations, kDoublingsOfOperations);
}

/// Half of all delays are shorter than a twentieth of the longest, because most operations are short.
std::int64_t Delays::any() noexcept {
  const std::uint64_t longest = draw(random_, 2) == 0 ? kLongestDelay / 20 : kLongestDelay;
  return static_cast<std::int64_t>(draw(random_, longest));
}

std::int64_t Delays::next() noexcept {
  if (kind_ == Kind::random) return draw(random_, kOneInDelayed) == 0 ? any() : 0;
  ++operations_;
  if (std::ranges::find(changes_, operations_) != changes_.end()) lag_ = any();
  return lag_;
}

}  // namespace base::schedule
