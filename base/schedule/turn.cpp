#include "base/schedule/turn.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "base/descriptor.hpp"
#include "base/futex.hpp"
#include "base/schedule/policy.hpp"

namespace base::schedule {
namespace {

// A thread that sleeps at so many looks in a row does not only pass a lock.
constexpr int kLooksAsleep = 3, kLooksAsleepIfExact = 30;
// A thread that loops until another one has done something never sleeps. It loses the turn after so much time
// on a core, and so does a long computation, whose result does not depend on it.
constexpr std::int64_t kLongestComputation = 250'000'000;
// A thread that was announced may take long to run on a busy machine.
constexpr int kLooksForNewThread = 100;
// A thread that chooses the next one takes less, unless it has ended meanwhile.
constexpr int kLooksForChoice = 100;
// How long processes that share a turn wait for each other before the first one goes on.
constexpr std::int64_t kPatienceForProcesses = 10'000'000'000;
// How long an exact step waits for threads outside to sleep. Threads that spin never do.
constexpr std::int64_t kPatienceForSleep = 300'000'000;

/// Reads a file of /proc/<pid>/task/<thread>/. Returns what it holds, or nothing if the thread is gone.
std::string_view read_of_thread(pid_t pid, pid_t thread, std::string_view name,
                                std::span<char> into) noexcept {
  char path[64] = "/proc/";
  char* end = std::to_chars(path + 6, path + 24, pid).ptr;
  std::memcpy(end, "/task/", 6);
  end = std::to_chars(end + 6, end + 24, thread).ptr;
  *end++ = '/';
  std::memcpy(end, name.data(), name.size());
  end[name.size()] = '\0';
  const FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  const ssize_t size = read(file.get(), into.data(), into.size());
  return {into.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

/// Returns the state of a thread as the kernel says it: 'R' if it runs or could, and 'X' if it is gone.
char state_of(pid_t pid, pid_t thread) noexcept {
  char content[512];
  const std::string_view text = read_of_thread(pid, thread, "stat", content);
  // The name may have any characters in it, so its last parenthesis ends it.
  const std::size_t name = text.rfind(')');
  return name == std::string_view::npos || name + 2 >= text.size() ? 'X' : text[name + 2];
}

/// Returns for how many nanoseconds a thread has had a core, or 0 if the kernel does not say.
std::int64_t time_on_core(pid_t pid, pid_t thread) noexcept {
  char content[128];
  const std::string_view text = read_of_thread(pid, thread, "schedstat", content);
  std::int64_t time = 0;
  std::from_chars(text.data(), text.data() + text.size(), time);
  return time;
}

bool sleeps(char state) noexcept {
  return state == 'S' || state == 'T' || state == 't' || state == 'X' || state == 'Z';
}

/// Returns whether all threads outside of the schedule sleep. Needs no lock: a thread that comes or goes
/// meanwhile is seen at the next step.
bool all_sleep(const Table& table) noexcept {
  for (const Slot& slot : table.slots) {
    const bool away = slot.state == State::outside || slot.state == State::lost;
    if (away && slot.thread != 0 && !sleeps(state_of(slot.pid, slot.thread))) return false;
  }
  return true;
}

/// Waits until threads outside that were woken have come back. The lock is not held meanwhile.
void settle(Table& table, TableLock& lock) noexcept {
  table.holder = kChoosing;
  table.chooser_pid = getpid();
  table.chooser_thread = static_cast<pid_t>(syscall(SYS_gettid));
  lock.unlock();
  const std::int64_t end = monotonic_ns() + kPatienceForSleep;
  // A thread that slept on the table's own lock runs after the first look.
  int quiet = 0;
  while (quiet < 2 && monotonic_ns() < end) {
    quiet = all_sleep(table) ? quiet + 1 : 0;
    sched_yield();
  }
  lock.lock();
  if (quiet < 2) ++table.taken;
  if (table.holder == kChoosing) table.holder = kNobody;
}

bool all_processes_have_come(Table& table) noexcept {
  if (table.arrived >= table.awaited) return true;
  if (monotonic_ns() - table.started < kPatienceForProcesses) return false;
  table.awaited = table.arrived;
  ++table.taken;
  return true;
}

}  // namespace

void hand_on(Table& table, TableLock& lock) noexcept {
  if (table.holder != kNobody || !all_processes_have_come(table)) return;
  if (table.exact) settle(table, lock);
  if (table.holder != kNobody) return;
  const int next = choose(table);
  if (next == kNobody) return;
  Slot& slot = table.slots[static_cast<std::size_t>(next)];
  table.holder = next;
  // A thread whose time was up is no part of the order: only the clock has chosen it.
  if (!std::exchange(slot.timed_out, false)) table.last = next;
  slot.state = State::running;
  slot.turn.store(1);
  futex_wake(slot.turn);
}

void take_from_holder(Table& table) noexcept {
  Slot& slot = table.slots[static_cast<std::size_t>(table.holder)];
  const bool is_gone = slot.thread == 0 || state_of(slot.pid, slot.thread) == 'X';
  slot.state = is_gone ? State::none : State::lost;
  slot.turn.store(0);
  table.holder = kNobody;
  ++table.taken;
  ++table.progress;
}

bool Watch::is_stuck(const Table& table) noexcept {
  const bool has_moved = table.holder != holder_ || table.progress != progress_ || table.steps != steps_;
  const bool chooses = table.holder == kChoosing;
  const Slot* slot = chooses ? nullptr : &table.slots[static_cast<std::size_t>(table.holder)];
  const pid_t pid = chooses ? table.chooser_pid : slot->pid.load();
  const pid_t thread = chooses ? table.chooser_thread : slot->thread.load();
  if (has_moved) {
    holder_ = table.holder;
    progress_ = table.progress;
    steps_ = table.steps;
    began_ = time_on_core(pid, thread);
    asleep_ = looks_ = 0;
    return false;
  }
  ++looks_;
  if (chooses) return looks_ > kLooksForChoice && state_of(pid, thread) == 'X';
  if (thread == 0) return looks_ > kLooksForNewThread;
  asleep_ = sleeps(state_of(pid, thread)) ? asleep_ + 1 : 0;
  return asleep_ >= (table.exact ? kLooksAsleepIfExact : kLooksAsleep) ||
         time_on_core(pid, thread) - began_ > kLongestComputation;
}

void Watch::look(Table& table) noexcept {
  TableLock lock(table);
  if (table.holder != kNobody && is_stuck(table)) {
    if (table.holder == kChoosing)
      table.holder = kNobody;
    else
      take_from_holder(table);
    asleep_ = looks_ = 0;
  }
  hand_on(table, lock);
}

}  // namespace base::schedule
