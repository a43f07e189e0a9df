#include "base/spinning.hpp"

#include "base/cores.hpp"

namespace base {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// 30 looks take about a microsecond, as long as a peer on another core takes if it is about to arrive. Longer
// looking gains nothing over yielding, and is a pure loss whenever the scheduler has put both ranks on one
// core.
//
// With a core for every rank, yielding is a spin that lets other threads run. A sleep would let the core go
// idle, and an idle core of a virtual machine takes 50 microseconds and more to resume. Where ranks outnumber
// cores, no core goes idle.
Spinning spinning_for_rank(bool oversubscribed) noexcept {
  return {.looks = oversubscribed ? 0 : 30,
          .patience = microseconds(oversubscribed ? 100 : 500),
          .longest_yielding = milliseconds(2)};
}

// A small message between two hosts of one machine takes about as long as 50 yields. Where ranks outnumber
// cores, a rank that yields takes time from the ranks that it waits for.
int yields_for_other_host(int ranks, int cores) noexcept {
  return ranks <= cores ? 50 : 0;
}

// 300 looks take some microseconds, whatever shares the core: a rank that is not done yet most likely runs on
// another core and is about as far. Yielding to another rank would cost two context switches, and that rank
// would find that it has to wait too.
int looks_for_work_item() noexcept {
  return 300;
}

// A peer that is about to answer takes no longer.
std::chrono::nanoseconds patience_for_message() noexcept {
  return microseconds(100);
}

// 200 looks take about as long as a sleep and a wake-up, and a running task often ends within that time. The
// number of ranks does not matter: the awaited task already has a core, so looking keeps no rank from it.
int looks_for_task() {
  static const int cores = UsableCores::of_this_process().count();
  return cores > 1 ? 200 : 0;
}

// A sleep and a wake-up cost as much as many small tasks do. The worker spins only after tasks have piled up.
std::chrono::nanoseconds spinning_for_next_task() noexcept {
  return microseconds(50);
}

}  // namespace base
