#include "transport/wait.hpp"

#include <sched.h>

#include "transport/futex.hpp"

namespace vccl {
namespace {

// About a microsecond: what a peer on another core takes that is already here. Longer spinning gains nothing
// over yielding, and costs all of itself whenever the scheduler has put both ranks on one core.
constexpr int kSpins = 30;
// How long a wait may yield without effect before it sleeps. With a core for every rank that is a spin which
// lets others in: a sleep would let the core go idle, and an idle core of a virtual machine takes 50
// microseconds and more to come back. Where ranks outnumber cores, no core goes idle.
constexpr auto kPatience = std::chrono::microseconds(500);
constexpr auto kCrowdedPatience = std::chrono::microseconds(100);
constexpr auto kLongestYielding = std::chrono::milliseconds(2);
// Sleepers are woken by a futex; the slice bounds how late they see what nobody wakes them for.
constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr auto kLivenessPeriod = std::chrono::milliseconds(100);

}  // namespace

void wake_sleepers(RankLine& line) noexcept {
  line.wakeups.fetch_add(1);
  futex_wake(line.wakeups);
}

void announce_core(RankLine& own) noexcept {
  const int core = sched_getcpu();
  // Only when it is news: the peers have the line in their caches.
  if (own.core.load(std::memory_order_relaxed) != core) own.core.store(core, std::memory_order_relaxed);
}

void Waiter::slow(Ready ready, Awaited awaited, const char* what) {
  if (spin(ready)) return;
  announce_core(group_.own_line());
  if (yield(ready, awaited, what)) return;
  auto next_look = Clock::now();
  while (true) {
    const auto now = Clock::now();
    const bool look = now >= next_look;
    if (look) next_look = now + kLivenessPeriod;
    if (exits(ready, awaited, what, look)) return;
    sleep(ready);
    if (ready()) return;
  }
}

bool Waiter::spin(Ready ready) {
  for (int i = 0; i < (group_.crowded ? 0 : kSpins); ++i) {
    if (ready()) return true;
    group_.check();
    relax();
  }
  return false;
}

// While the scheduler owes us time, after the others computed longer than we did, it declines our yields:
// they come straight back until that time, often milliseconds, is burnt. If the rank that we wait for is on
// this core, burning it here keeps that rank from running, and nothing moves it to another core, as both look
// busy. A sleep lets it run at once, and the wake-up finds an idle core for one of us.
bool Waiter::yield(Ready ready, Awaited awaited, const char* what) {
  const auto patience = group_.crowded ? kCrowdedPatience : kPatience;
  const auto begin = Clock::now();
  auto now = begin, last_effect = begin;
  while (now - last_effect < patience && now - begin < kLongestYielding) {
    if (exits(ready, awaited, what, false)) return true;
    const auto before = Clock::now();
    sched_yield();
    if (ready()) return true;
    now = Clock::now();
    if (has_let_in(now - before)) {
      last_effect = now;
    } else if (shares_core(awaited)) {
      return false;
    }
  }
  return false;
}

// A yield that comes straight back takes 300 to 700 ns, as the machine is; switching to another rank and back
// takes five times as long and more.
bool Waiter::has_let_in(std::chrono::nanoseconds yield) {
  shortest_yield_ = std::min(shortest_yield_, yield);
  return yield > 3 * shortest_yield_;
}

bool Waiter::shares_core(Awaited awaited) const {
  const HostGroup& host = group_.host;
  const int core = sched_getcpu();
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i != host.index && host.line(i).core.load(std::memory_order_relaxed) == core && awaited(i))
      return true;
  }
  return false;
}

void Waiter::sleep(Ready ready) {
  RankLine& line = group_.own_line();
  // Read before the condition: a wake-up between the two changes the word, and the futex does not sleep.
  const std::uint32_t seen = line.wakeups.load();
  const auto left = group_.deadline.at - Clock::now();
  line.sleepers.fetch_add(1);
  if (!ready() && !group_.failure().happened() && left.count() > 0) {
    futex_wait(line.wakeups, seen, std::min<std::chrono::nanoseconds>(kSlice, left));
  }
  line.sleepers.fetch_sub(1);
}

bool Waiter::exits(Ready ready, Awaited awaited, const char* what, bool look_for_dead) {
  group_.check();
  if (group_.pump) {
    group_.pump();
    group_.check();
  }
  const HostGroup& host = group_.host;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i == host.index || !awaited(i)) continue;
    const bool left = read(host.line(i).state) == RankState::left;
    if (!left && !(look_for_dead && host.processes[i].dead())) continue;
    // Everything the peer did, it did before it left or died: only what is missing now stays missing.
    if (ready()) return true;
    if (!awaited(i)) continue;
    const std::string rank = "rank " + std::to_string(host.ranks[i]);
    const std::string us = "rank " + std::to_string(group_.rank);
    if (left || read(host.line(i).state) == RankState::left) {
      group_.raise(ErrorCode::peer_left, rank + " left group " + group_.name + " while " + us +
                                             " waited for it " + what + " " + group_.operation_text());
    }
    group_.raise(ErrorCode::peer_dead, rank + " (pid " + std::to_string(host.processes[i].pid()) +
                                           ") died while " + us + " waited for it " + what + " " +
                                           group_.operation_text());
  }
  if (group_.deadline.passed()) {
    if (ready()) return true;
    time_out(awaited, what);
  }
  return false;
}

void Waiter::time_out(Awaited awaited, const char* what) {
  const HostGroup& host = group_.host;
  std::vector<int> missing;
  std::string begun;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i == host.index || !awaited(i)) continue;
    missing.push_back(host.ranks[i]);
    const auto last =
        std::max(host.line(i).operations[0].sequence.load(), host.line(i).operations[1].sequence.load());
    begun += "; rank " + std::to_string(host.ranks[i]) + " has begun " + std::to_string(last) + " operations";
  }
  group_.raise(ErrorCode::timeout, "rank " + std::to_string(group_.rank) + " waited " +
                                       duration_text(group_.deadline.length) + " for " + ranks_text(missing) +
                                       " " + what + " " + group_.operation_text() + begun +
                                       ". Look for a rank that is stuck or slow, or raise the timeout.");
}

}  // namespace vccl
