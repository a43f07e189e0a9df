// Waiting for a peer on this host. Every wait ends in one of four ways: the condition holds; the deadline
// passed or the peer is gone; the communicator failed; a signal handler interrupts the main thread.
#pragma once

#include <vector>

#include "transport/shared/flags.hpp"
#include "transport/state/current_operation.hpp"
#include "transport/state/failure_channel.hpp"
#include "transport/support/function_ref.hpp"

namespace vccl {

/// Waits on behalf of one rank. Only the owner of the current operation may use it.
class Waiter {
 public:
  Waiter(const Group& group, const CurrentOperation& operation, FailureChannel& failures)
      : group_(group), operation_(operation), failures_(failures) {}

  /// Blocks until `ready()` holds. Otherwise fails the group and throws: at the operation's deadline, when a
  /// peer for which `awaited(index)` holds has left or died, or when the calling thread is interrupted.
  /// Throws the recorded failure if another rank or thread has failed the group. `what` completes "rank 0
  /// waited for rank 1 ...", for instance "to begin".
  template <class Ready, class Awaited>
  void until(Ready ready, Awaited awaited, const char* what) {
    if (ready()) return;
    wait_until(ready, awaited, what, false);
  }
  /// Blocks like until() at the start of an operation, for the ranks that have not begun it. Reports a wait
  /// that lasts to the DeadlockWatch.
  template <class Ready, class Awaited>
  void until_all_begin(Ready ready, Awaited awaited) {
    if (ready()) return;
    wait_until(ready, awaited, "to begin", true);
  }
  /// Blocks like until(), for one peer.
  template <class Ready>
  void until(Ready ready, int peer, const char* what) {
    until(ready, [peer](int index) { return index == peer; }, what);
  }

 private:
  using Ready = FunctionRef<bool()>;
  using Awaited = FunctionRef<bool(int)>;

  void wait_until(Ready ready, Awaited awaited, const char* what, bool at_start);
  bool spin(Ready ready);
  bool yield(Ready ready, Awaited awaited, const char* what);
  /// Returns whether another process has run during a yield that took this long.
  bool let_another_run(std::chrono::nanoseconds yield);
  bool shares_core(Awaited awaited) const;
  void sleep(Ready ready);
  /// Returns whether the wait is over because `ready()` holds after all, and throws if the wait cannot
  /// succeed any more.
  bool is_over(Ready ready, Awaited awaited, const char* what, bool look_for_dead);
  /// Fails the group and throws if the calling thread is interrupted.
  void check_interruption(Awaited awaited, const char* what);
  /// Returns whether this rank speaks for those of its host that wait for the same: so one of them finds out
  /// what keeps the others, and not each.
  bool speaks(Awaited awaited) const;
  /// Returns those other ranks of this host that are awaited.
  std::vector<int> missing(Awaited awaited) const;
  /// Returns "rank 0 waited 60 s for rank 3 to begin all_reduce(...) (operation 7 of group G)".
  std::string wait_text(Milliseconds waited, Awaited awaited, const char* what) const;
  void warn(Clock::time_point begin, Awaited awaited, const char* what) const;
  [[noreturn]] void time_out(Awaited awaited, const char* what);

  const Group& group_;
  const CurrentOperation& operation_;
  FailureChannel& failures_;
  std::chrono::nanoseconds shortest_yield_{700};
};

}  // namespace vccl
