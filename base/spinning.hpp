// How long a thread that waits keeps its core before it sleeps, and how long it sleeps at most. The waits for
// ranks, messages and tasks ask here, so that the decision has one place. It depends on the usable cores (the
// affinity mask and the quota of the control group, see base/cores.hpp) and on how many ranks share them.
#pragma once

#include <chrono>
#include <thread>

namespace base {

/// How a thread waits for another rank of its host before it sleeps. First it looks `looks` times in a row.
/// Then it yields and looks, until yielding has had no effect for `patience` or has lasted for
/// `longest_yielding`.
struct Spinning {
  int looks;
  std::chrono::nanoseconds patience;
  std::chrono::nanoseconds longest_yielding;
};

/// Returns how a rank waits for a rank of its host. `oversubscribed` is the result of are_oversubscribed()
/// for the ranks of the host.
Spinning spinning_for_rank(bool oversubscribed) noexcept;

/// Returns how often a rank yields and looks before it sleeps until a rank on another host has sent
/// something. `ranks` counts the group's ranks on this machine, which share `cores` usable cores. Hosts that
/// are pretended share the cores of the machine.
int yields_for_other_host(int ranks, int cores) noexcept;

/// Returns how often a rank that has done its work items looks whether the last work item of the others is
/// done, before it waits as spinning_for_rank() says.
int looks_for_work_item() noexcept;

/// Returns for how long the thread that carries messages yields without effect before it sleeps.
std::chrono::nanoseconds patience_for_message() noexcept;

/// Returns how often a thread looks for the end of a task that another thread of this process is running.
/// The number is 0 if the process may use only one core, which the running task needs.
int looks_for_task();

/// Returns for how long a worker without a task spins until the thread that has enqueued many brings the
/// next.
std::chrono::nanoseconds spinning_for_next_task() noexcept;

/// How long a waiting thread sleeps at most before it looks at deadlines, dead processes and interruptions
/// again, because nobody wakes it for these. At half of kInterruptionPeriod and kLivenessPeriod
/// (base/periods.hpp), an event is noticed at most half a period late, and twenty wake-ups a second cost a
/// core nothing that can be measured.
inline constexpr std::chrono::milliseconds kLongestSleep{50};

/// Tells the processor that the calling thread spins, so that the core's other hardware thread runs faster.
/// Also makes a look take some ten nanoseconds, which is what the numbers of looks above count on.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // Most arm64 cores take `yield` for nothing and would poll the awaited line without a pause. `isb` lets the
  // instructions under way end first, which takes about as long as x86's `pause`.
  asm volatile("isb" : : : "memory");
#else
  std::this_thread::yield();
#endif
}

}  // namespace base
