// What a thread does at the places that base/schedule.hpp marks.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/futex.hpp"
#include "base/schedule/process.hpp"
#include "base/schedule/turn.hpp"

namespace base::schedule {
namespace {

using Time = std::chrono::steady_clock::time_point;

/// What a thread knows of itself.
struct ThisThread {
  ThisThread() = default;
  ~ThisThread() { leave_for_good(); }
  ThisThread(const ThisThread&) = delete;
  ThisThread& operator=(const ThisThread&) = delete;

  void leave_for_good() noexcept;

  Table* table = nullptr;  // in which the thread has a slot, of the schedule `generation`
  int slot = -1;
  std::uint64_t generation = 0;
  int outside = 0;
  int no_points = 0;
  bool ended = false;

  Slot& own() const noexcept { return table->slots[static_cast<std::size_t>(slot)]; }
  bool is_over() const noexcept { return generation != current_generation(); }
  bool has_turn() const noexcept { return table->holder == slot && own().state == State::running; }
};

ThisThread& this_thread() noexcept {
  thread_local ThisThread thread;
  return thread;
}

/// Releases the lock of the interpreter while the calling thread waits for the turn.
class WithoutInterpreterLock {
 public:
  WithoutInterpreterLock() noexcept : state_(interpreter_lock().release()) {}
  ~WithoutInterpreterLock() {
    if (state_ != nullptr) interpreter_lock().take(state_);
  }
  WithoutInterpreterLock(const WithoutInterpreterLock&) = delete;
  WithoutInterpreterLock& operator=(const WithoutInterpreterLock&) = delete;

 private:
  void* const state_;
};

/// Sees to it that the thread has a slot in the schedule that is on. Returns false if it takes no part: it
/// has ended, or there are too many threads, or no schedule is on. A new thread is outside until it has asked
/// for the turn.
bool joined(ThisThread& me) noexcept {
  if (me.ended) return false;
  if (me.table != nullptr && !me.is_over()) return me.slot >= 0;
  me.table = nullptr;
  me.slot = -1;
  const Running running = running_schedule();
  if (running.table == nullptr) return false;
  me.table = running.table;
  me.generation = running.generation;
  TableLock lock(*me.table);
  if (me.is_over()) return false;
  me.slot = add_thread(*me.table, State::outside);
  if (me.slot < 0) return false;
  me.own().thread = static_cast<pid_t>(syscall(SYS_gettid));
  return true;
}

/// Gives the turn back if the thread has it, and takes another state. The caller holds the lock, and calls
/// hand_on().
void become(ThisThread& me, State state) noexcept {
  if (me.has_turn()) me.table->holder = kNobody;
  Slot& slot = me.own();
  slot.turn.store(0);
  slot.timed_out = false;
  slot.state = state;
}

/// Sleeps on the thread's word for `time` nanoseconds, or until it has the turn. Returns whether it has.
bool took_turn(ThisThread& me, std::int64_t time) noexcept {
  Slot& slot = me.own();
  if (slot.turn.load() == 0) futex_wait(slot.turn, 0, std::chrono::nanoseconds(time));
  return slot.turn.load() != 0;
}

/// Watches who has the turn, for a thread that waits for it. Makes the thread ready again if the turn was
/// taken from it before it knew that it had it: a thread that looks, or waits for the table's lock, sleeps
/// where the schedule does not know it, and may be given the turn just then. Nobody would ever choose it
/// again.
void watch_holder(ThisThread& me, Watch& watch) noexcept {
  if (me.own().state == State::lost) {
    const TableLock lock(*me.table);
    if (!me.is_over() && me.own().state == State::lost) become(me, State::ready);
  }
  watch.look(*me.table);  // hands the turn on
}

/// Blocks until the thread, which is ready, has the turn, or the schedule is over.
void await_turn(ThisThread& me) noexcept {
  Watch watch;
  while (!me.is_over() && !took_turn(me, Watch::kLook)) watch_holder(me, watch);
}

/// Does the same, and lets Python run meanwhile.
void await_turn_without_interpreter(ThisThread& me) noexcept {
  if (me.is_over() || me.own().turn.load() != 0) return;
  const WithoutInterpreterLock unlocked;
  await_turn(me);
}

void ask_for_turn(ThisThread& me, bool polls) noexcept {
  {
    Table& table = *me.table;
    TableLock lock(table);
    if (me.is_over()) return;
    if (!polls) ++table.progress;
    become(me, State::ready);
    Slot& slot = me.own();
    slot.polls = polls;
    if (polls) {
      slot.polled = table.progress;
      slot.priority = --table.lowest;
    }
    hand_on(table, lock);
  }
  await_turn_without_interpreter(me);
}

/// Makes the threads of this process ready that sleep on a channel. Returns whether there are any. The caller
/// holds the lock, and calls hand_on().
bool make_ready(Table& table, const void* channel) noexcept {
  bool any = false;
  const pid_t own = getpid();
  for (Slot& slot : table.slots) {
    if (slot.state != State::blocked || slot.pid != own ||
        slot.channel != reinterpret_cast<std::uintptr_t>(channel))
      continue;
    any = true;
    ++table.progress;
    slot.state = State::ready;
    slot.polls = false;
    futex_wake(slot.turn);  // so that it watches who has the turn from now on
  }
  return any;
}

/// Takes a slot that was announced for the calling thread, and waits for the turn. `is_it` knows the slot.
template <class IsIt>
void take_announced(ThisThread& me, const Running& running, const IsIt& is_it) noexcept {
  Table& table = *running.table;
  {
    TableLock lock(table);
    me.table = nullptr;
    if (running.generation != current_generation()) return;
    const pid_t pid = getpid();
    for (std::size_t i = 0; i < table.slots.size() && me.table == nullptr; ++i) {
      Slot& slot = table.slots[i];
      // It is gone if the thread came so late that nobody counted on it any more.
      const bool waits_for_a_thread = slot.pid == pid && slot.thread == 0 &&
                                      (slot.state == State::coming || slot.state == State::running);
      if (!waits_for_a_thread || !is_it(static_cast<int>(i), slot)) continue;
      me.table = running.table;
      me.generation = running.generation;
      me.slot = static_cast<int>(i);
      slot.thread = static_cast<pid_t>(syscall(SYS_gettid));
      if (slot.state == State::coming) slot.state = State::ready;
    }
    if (me.table == nullptr) return;
    hand_on(table, lock);
  }
  await_turn_without_interpreter(me);
}

void ThisThread::leave_for_good() noexcept {
  ended = true;
  if (table == nullptr || slot < 0 || is_over()) return;
  TableLock lock(*table);
  if (is_over()) return;
  ++table->progress;
  become(*this, State::none);
  hand_on(*table, lock);
}

/// Holds this process up before an operation with others, if each has a turn of its own.
void hold_up() noexcept {
  const std::int64_t delay = next_delay();
  if (delay == 0) return;
  const Outside away;
  std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
}

/// Whether another thread of this process could go on, or runs. The caller holds the lock.
bool others_go_on(const Table& table, int own) noexcept {
  const pid_t pid = getpid();
  for (int i = 0; i < kMostThreads; ++i) {
    const Slot& slot = table.slots[static_cast<std::size_t>(i)];
    const bool goes_on =
        slot.state == State::ready || slot.state == State::coming || slot.state == State::running;
    if (i != own && goes_on && slot.pid == pid) return true;
  }
  return false;
}

}  // namespace

void let_others_come_to_rest() noexcept {
  constexpr int kMostTurns = 1000;  // a thread may go on for ever
  ThisThread& me = this_thread();
  for (int i = 0; i < kMostTurns && me.outside == 0 && takes_part(); ++i) {
    {
      const TableLock lock(*me.table);
      if (me.is_over() || !others_go_on(*me.table, me.slot)) return;
    }
    ask_for_turn(me, true);
  }
}

namespace detail {

void pass(Point where) noexcept {
  ThisThread& me = this_thread();
  if (me.no_points > 0 || me.outside > 0) return;
  if (where == Point::push && interpreter_lock().held()) return;
  if (!joined(me)) return;
  const bool meets_others = where == Point::operation || where == Point::meeting || where == Point::message;
  if (meets_others) hold_up();
  ask_for_turn(me, where == Point::poll);
}

void wake(const void* channel) noexcept {
  const Running running = running_schedule();
  if (running.table == nullptr) return;
  TableLock lock(*running.table);
  if (running.generation != current_generation()) return;
  make_ready(*running.table, channel);
  hand_on(*running.table, lock);
}

void wake_one(const void* channel) noexcept {
  const Running running = running_schedule();
  if (running.table == nullptr) return;
  Table& table = *running.table;
  TableLock lock(table);
  if (running.generation != current_generation()) return;
  if (!make_ready(table, channel)) {
    const int expected = add_thread(table, State::coming);
    if (expected >= 0)
      table.slots[static_cast<std::size_t>(expected)].channel = reinterpret_cast<std::uintptr_t>(channel);
  }
  hand_on(table, lock);
}

void leave() noexcept {
  ThisThread& me = this_thread();
  if (me.outside++ > 0 || !joined(me)) return;
  Table& table = *me.table;
  TableLock lock(table);
  if (me.is_over()) return;
  ++table.progress;
  become(me, State::outside);
  hand_on(table, lock);
}

void come_back() noexcept {
  ThisThread& me = this_thread();
  if (--me.outside > 0 || me.ended || me.slot < 0 || me.is_over()) return;
  ask_for_turn(me, false);
}

}  // namespace detail

bool takes_part() noexcept {
  const ThisThread& me = this_thread();
  return me.table != nullptr && me.slot >= 0 && !me.is_over();
}

std::cv_status sleep(const void* channel, std::unique_lock<std::mutex>& lock, Time end,
                     std::optional<Look> look) noexcept {
  ThisThread& me = this_thread();
  const auto briefly = [&] {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
    return std::chrono::steady_clock::now() >= end ? std::cv_status::timeout : std::cv_status::no_timeout;
  };
  if (me.outside > 0 || !joined(me)) return briefly();
  Table& table = *me.table;
  {
    TableLock held(table);
    if (me.is_over()) return std::cv_status::no_timeout;
    ++table.progress;
    become(me, State::blocked);
    Slot& slot = me.own();
    slot.channel = reinterpret_cast<std::uintptr_t>(channel);
    slot.polls = false;
    lock.unlock();
    hand_on(table, held);
  }
  bool timed_out = false;
  Watch watch;
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(100);
  Time next_look = look ? std::chrono::steady_clock::now() + look->period : Time::max();
  while (!me.is_over()) {
    const auto now = std::chrono::steady_clock::now();
    const bool waits = !timed_out && me.own().state == State::blocked;  // a stale look only costs a round
    const std::int64_t left =
        std::clamp<std::chrono::nanoseconds>(std::min(end, next_look) - now, {}, kLongest).count();
    if (took_turn(me, waits ? left : Watch::kLook)) break;
    bool goes_on = false;
    if (waits && std::chrono::steady_clock::now() >= next_look) {
      goes_on = look->must_go_on();
      next_look = std::chrono::steady_clock::now() + look->period;
    }
    if (!waits) {
      watch_holder(me, watch);
    } else if (goes_on || std::chrono::steady_clock::now() >= end) {
      TableLock held(table);
      timed_out = !me.is_over() && me.own().state == State::blocked;
      if (timed_out) {
        me.own().state = State::ready;
        me.own().timed_out = true;
        hand_on(table, held);
      }
    }
  }
  lock.lock();
  return timed_out ? std::cv_status::timeout : std::cv_status::no_timeout;
}

NewThread::NewThread() noexcept {
  const Running running = running_schedule();
  if (running.table == nullptr) return;
  TableLock lock(*running.table);
  generation_ = running.generation;
  slot_ = add_thread(*running.table, State::coming);
}

void NewThread::begin() const noexcept {
  ThisThread& me = this_thread();
  me.ended = false;
  const Running running = running_schedule();
  if (slot_ < 0 || running.table == nullptr || running.generation != generation_) return;
  take_announced(me, running, [this](int slot, const Slot&) { return slot == slot_; });
}

void come(const void* channel) noexcept {
  ThisThread& me = this_thread();
  const Running running = running_schedule();
  if (running.table == nullptr || me.ended || takes_part()) return;
  take_announced(me, running, [channel](int, const Slot& slot) {
    return slot.channel == reinterpret_cast<std::uintptr_t>(channel);
  });
}

void end_thread() noexcept {
  this_thread().leave_for_good();
}

NoPoints::NoPoints() noexcept {
  ++this_thread().no_points;
}

NoPoints::~NoPoints() {
  --this_thread().no_points;
}

}  // namespace base::schedule
