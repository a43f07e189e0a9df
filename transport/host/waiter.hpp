// Waiting for a peer on this host. Every wait ends in one of four ways: the condition holds; the deadline
// passed or the peer is gone; the communicator failed; a signal handler interrupts the main thread.
#pragma once

#include "transport/state/group.hpp"

namespace vccl {

/// A reference to a callable object, for the part of a wait that is not performance-critical enough for a
/// template.
template <class Result, class... Arguments>
class FunctionRef;
template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class F>
  FunctionRef(F& f)  // NOLINT: implicit by intent
      : object_(&f), call_([](void* object, Arguments... arguments) -> Result {
          return (*static_cast<F*>(object))(arguments...);
        }) {}
  Result operator()(Arguments... arguments) const { return call_(object_, arguments...); }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

// How a flag and its sleepers work together: the waker stores the flag and then reads the number of sleepers.
// The sleeper increments the number of sleepers and then reads the flag. If either pair were reordered (a
// later load before a store, which even x86 does), both ranks could miss each other, and the sleeper would
// not be woken. Hence all four accesses are sequentially consistent. They also pair as release and acquire: a
// rank that has read the flag's new value sees everything that was written before publish().

/// Wakes the rank that owns `line`, if that rank sleeps.
void wake_sleepers(RankLine& line) noexcept;
inline void wake(RankLine& line) noexcept {
  if (line.sleepers.load() != 0) wake_sleepers(line);
}

/// Reads a flag in the condition of a wait.
template <class T>
T read(const std::atomic<T>& flag) {
  return flag.load();
}

/// Sets a flag for which only the rank that owns `reader` waits, and wakes that rank.
template <class T>
void publish(std::atomic<T>& flag, T value, RankLine& reader) {
  flag.store(value);
  wake(reader);
}

/// Publishes to the peers which core the calling thread runs on.
void announce_core(RankLine& own) noexcept;

/// Waits on behalf of one rank.
class Waiter {
 public:
  explicit Waiter(Group& group) : group_(group) {}

  /// Blocks until `ready()` holds. Otherwise fails the group and throws: at the operation's deadline, when a
  /// peer for which `awaited(index)` holds has left or died, or when the calling thread is interrupted.
  /// Throws the recorded failure if another rank or thread has failed the group. `what` completes "rank 0
  /// waited for rank 1 ...", for instance "to begin".
  template <class Ready, class Awaited>
  void until(Ready ready, Awaited awaited, const char* what) {
    if (ready()) return;
    slow(ready, awaited, what, false);
  }
  /// Blocks like until() at the start of an operation, for the ranks that have not begun it. Reports a wait
  /// that lasts to the DeadlockWatch.
  template <class Ready, class Awaited>
  void until_all_begin(Ready ready, Awaited awaited) {
    if (ready()) return;
    slow(ready, awaited, "to begin", true);
  }
  /// Blocks like until(), for one peer.
  template <class Ready>
  void until(Ready ready, int peer, const char* what) {
    until(ready, [peer](int index) { return index == peer; }, what);
  }

 private:
  using Ready = FunctionRef<bool()>;
  using Awaited = FunctionRef<bool(int)>;

  void slow(Ready ready, Awaited awaited, const char* what, bool at_start);
  bool spin(Ready ready);
  bool yield(Ready ready, Awaited awaited, const char* what);
  /// Returns whether another process has run during a yield that took this long.
  bool has_let_in(std::chrono::nanoseconds yield);
  bool shares_core(Awaited awaited) const;
  void sleep(Ready ready);
  /// Returns true when `ready()` holds after all, and false when the wait goes on. Throws in all other cases.
  bool exits(Ready ready, Awaited awaited, const char* what, bool look_for_dead);
  /// Fails the group and throws if the calling thread is interrupted.
  void check_interruption(Awaited awaited, const char* what);
  [[noreturn]] void time_out(Awaited awaited, const char* what);

  Group& group_;
  std::chrono::nanoseconds shortest_yield_{700};
};

}  // namespace vccl
