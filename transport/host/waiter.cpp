#include "transport/host/waiter.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/futex.hpp"
#include "base/periods.hpp"
#include "base/schedule.hpp"
#include "base/spinning.hpp"
#include "base/text.hpp"
#include "base/thread_waits.hpp"
#include "transport/deadlock_watch.hpp"
#include "transport/explanation.hpp"
#include "transport/interruption_check.hpp"
#include "transport/state/wait_description.hpp"
#include "transport/support/error_text.hpp"

namespace vccl {
namespace {

// A wait at the start of an operation that has lasted this long may be part of a deadlock.
constexpr auto kLasting = std::chrono::milliseconds(200);
// How long a rank whose deadline has passed waits for the one that speaks for it.
constexpr auto kExplanationPatience = std::chrono::seconds(1);

}  // namespace

void Waiter::wait_until(Ready ready, Awaited awaited, const char* what, bool at_start) {
  const bool scheduled = base::schedule::is_on();
  if (scheduled ? ready() : spin(ready)) return;
  const base::schedule::Outside elsewhere;
  announce_core(group_.own_line());
  const base::ThreadWaits waits;
  if (!scheduled && yield(ready, awaited, what)) return;
  const auto begin = Clock::now();
  auto next_look = begin;
  auto next_interruption = begin + base::kInterruptionPeriod;
  std::optional<LastingWait> lasting;
  WaitWarning warning(begin, operation_.deadline(), group_.warn_after);
  while (true) {
    const auto now = Clock::now();
    const bool look = now >= next_look;
    if (look) next_look = now + base::kLivenessPeriod;
    if (is_over(ready, awaited, what, look)) return;
    if (now >= next_interruption) {
      next_interruption = now + base::kInterruptionPeriod;
      check_interruption(awaited, what);
    }
    // Once all ranks of this host have begun, another host may still keep them.
    if ((at_start || !group_.far.empty()) && !lasting && now - begin >= kLasting)
      lasting.emplace(group_, operation_.sequence(), operation_.call_text(), operation_.far_needs());
    if (warning.due(now) && speaks(awaited)) warn(begin, awaited, what);
    sleep(ready);
    if (ready()) return;
  }
}

bool Waiter::spin(Ready ready) {
  for (int looks = base::spinning_for_rank(group_.oversubscribed).looks; looks > 0; --looks) {
    if (ready()) return true;
    if (failures_.happened()) return false;  // is_over() looks once more
    base::cpu_pause();
  }
  return false;
}

// If other threads have computed for longer than this one, the scheduler ignores this thread's yields: they
// return at once until this thread has used up its share of time, which often takes milliseconds. If the
// awaited rank is on this core, it cannot run until then, and the scheduler does not move it to another core,
// because both threads look busy. A sleep lets the awaited rank run at once, and the wake-up finds an idle
// core for one of the two.
bool Waiter::yield(Ready ready, Awaited awaited, const char* what) {
  const base::Spinning spinning = base::spinning_for_rank(group_.oversubscribed);
  const auto begin = Clock::now();
  auto now = begin, last_effect = begin;
  while (now - last_effect < spinning.patience && now - begin < spinning.longest_yielding) {
    if (is_over(ready, awaited, what, false)) return true;
    const auto before = Clock::now();
    sched_yield();
    if (ready()) return true;
    now = Clock::now();
    if (let_another_run(now - before)) {
      last_effect = now;
    } else if (shares_core(awaited)) {
      return false;
    }
  }
  return false;
}

// A yield that returns at once takes 300 to 700 ns, depending on the machine. Switching to another rank and
// back takes at least five times as long.
bool Waiter::let_another_run(std::chrono::nanoseconds yield) {
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
  // The counter is read before the condition: a wake-up in between changes the word, and the futex does not
  // sleep.
  const std::uint32_t seen = line.wakeups.load();
  const auto left = operation_.deadline().at - Clock::now();
  line.sleepers.fetch_add(1);
  if (!ready() && !failures_.happened() && left.count() > 0) {
    base::futex_wait(line.wakeups, seen, std::min<std::chrono::nanoseconds>(base::kLongestSleep, left));
  }
  line.sleepers.fetch_sub(1);
}

// A wait calls this at least every base::kLongestSleep, and looks for dead processes every
// base::kLivenessPeriod. A process on this machine is dead when the kernel says so about its pidfd
// (PeerProcess::dead()), however it died. That a peer on another host is gone, the links notice:
// receive() reads them, and RemoteLinks::end_of() fails the group when the connection has ended.
// The first rank that notices records the failure, which ends the waits of all others in check().
bool Waiter::is_over(Ready ready, Awaited awaited, const char* what, bool look_for_dead) {
  failures_.receive();
  if (failures_.happened()) {
    // A rank that is ahead may have failed in a later operation. It had done its part of this one before.
    if (ready()) return true;
    failures_.check();
  }
  if (look_for_dead) failures_.check_meeting();
  const HostGroup& host = group_.host;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i == host.index || !awaited(i)) continue;
    const bool left = read(host.line(i).state) == RankState::left;
    if (!left && !(look_for_dead && host.processes[i].dead())) continue;
    // Everything that the peer did, it did before it left or died. What is missing now will stay missing.
    if (ready()) return true;
    if (!awaited(i)) continue;
    // The peer may have given up for a reason that it or an earlier rank has announced.
    failures_.await_reason();
    const std::string us = group_.own_text();
    if (left || read(host.line(i).state) == RankState::left) {
      failures_.raise_for_end(ErrorCode::peer_left,
                              base::text(failures_.left_text_of_index(i), " while ", us, " waited for it ",
                                         what, " ", operation_.text()));
    }
    failures_.raise_for_end(
        ErrorCode::peer_dead,
        base::text(group_.rank_text(host.ranks[i], base::text("pid ", host.processes[i].pid())),
                   " died while ", us, " waited for it ", what, " ", operation_.text()));
  }
  if (operation_.deadline().passed()) {
    if (ready()) return true;
    time_out(awaited, what);
  }
  return false;
}

void Waiter::check_interruption(Awaited awaited, const char* what) {
  const std::string by = interruption();
  if (by.empty()) return;
  failures_.raise_interrupted(
      by, base::text(group_.names.ranks(missing(awaited)), " ", what, " ", operation_.text()));
}

bool Waiter::speaks(Awaited awaited) const {
  for (int i = 0; i < group_.host.index; ++i)
    if (!awaited(i)) return false;
  return true;
}

std::vector<int> Waiter::missing(Awaited awaited) const {
  const HostGroup& host = group_.host;
  std::vector<int> ranks;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i)
    if (i != host.index && awaited(i)) ranks.push_back(host.ranks[i]);
  return ranks;
}

std::string Waiter::wait_text(Milliseconds waited, Awaited awaited, const char* what) const {
  return base::text(group_.own_text(), " waited ", duration_text(waited), " for ",
                    group_.names.ranks(missing(awaited)), " ", what, " ", operation_.text());
}

void Waiter::warn(Clock::time_point begin, Awaited awaited, const char* what) const {
  const auto waited = Clock::now() - begin;
  group_.log.always(
      base::text(wait_text(std::chrono::duration_cast<std::chrono::seconds>(waited), awaited, what),
                 ", and goes on waiting.", explanation(waited)));
}

void Waiter::time_out(Awaited awaited, const char* what) {
  const HostGroup& host = group_.host;
  if (!speaks(awaited)) {
    const auto end = Clock::now() + kExplanationPatience;
    while (!failures_.happened() && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    failures_.check();
  }
  std::string begun;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i == host.index || !awaited(i)) continue;
    const auto last =
        std::max(host.line(i).operations[0].sequence.load(), host.line(i).operations[1].sequence.load());
    begun += base::text("; ", group_.rank_text(host.ranks[i]), " has begun ", last,
                        " operations of this communicator; ", waits_text(group_, i));
  }
  const Milliseconds waited = operation_.deadline().length;
  failures_.raise(
      ErrorCode::timeout,
      base::text(wait_text(waited, awaited, what), begun,
                 ". Look for a rank that is stuck or slow, or raise the timeout.", explanation(waited)));
}

}  // namespace vccl
