// Waiting for a peer on this host. Every wait has three exits: done; timed out or the peer is gone; the group
// failed.
#pragma once

#include "transport/group.hpp"

namespace vccl {

/// A call by reference, for the part of a wait that is not worth a template.
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

// A flag and its sleepers. The waker stores the flag and then looks for sleepers; the sleeper counts itself
// in and then looks at the flag. Were either pair reordered (a store after a later load, which even x86
// does), both could miss each other and the sleeper would sleep on. Hence all four accesses are sequentially
// consistent. They also pair as release and acquire: whatever was written before publish() is visible to
// whoever saw the flag.

/// Between two looks at a flag.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Wakes the rank whose line this is, if it sleeps.
void wake_sleepers(RankLine& line) noexcept;
inline void wake(RankLine& line) noexcept {
  if (line.sleepers.load() != 0) wake_sleepers(line);
}

/// Reads a flag for a wait's condition.
template <class T>
T read(const std::atomic<T>& flag) {
  return flag.load();
}

/// Sets a flag that only the rank at `reader` waits for.
template <class T>
void publish(std::atomic<T>& flag, T value, RankLine& reader) {
  flag.store(value);
  wake(reader);
}

/// Tells the peers which core the calling thread runs on.
void announce_core(RankLine& own) noexcept;

/// Waits on behalf of one rank.
class Waiter {
 public:
  explicit Waiter(Group& group) : group_(group) {}

  /// Returns once `ready()`. Otherwise throws, and fails the group: at the operation's deadline, when a peer
  /// for which `awaited(index)` holds has left or died, or with the failure that somebody else recorded.
  /// `what` completes "rank 0 waited for rank 1 ...": "to begin".
  template <class Ready, class Awaited>
  void until(Ready ready, Awaited awaited, const char* what) {
    if (ready()) return;
    slow(ready, awaited, what);
  }
  /// The same, for one peer.
  template <class Ready>
  void until(Ready ready, int peer, const char* what) {
    until(ready, [peer](int index) { return index == peer; }, what);
  }

 private:
  using Ready = FunctionRef<bool()>;
  using Awaited = FunctionRef<bool(int)>;

  void slow(Ready ready, Awaited awaited, const char* what);
  bool spin(Ready ready);
  bool yield(Ready ready, Awaited awaited, const char* what);
  /// Whether a yield that took this long has let another process run.
  bool has_let_in(std::chrono::nanoseconds yield);
  bool shares_core(Awaited awaited) const;
  void sleep(Ready ready);
  /// True when ready after all; throws for the other exits.
  bool exits(Ready ready, Awaited awaited, const char* what, bool look_for_dead);
  [[noreturn]] void time_out(Awaited awaited, const char* what);

  Group& group_;
  std::chrono::nanoseconds shortest_yield_{700};
};

}  // namespace vccl
