// How often threads that wait look for events that wake nobody. Periods that several waits share are named
// here, each with the reason for its value.
#pragma once

#include <chrono>

namespace base {

/// How often a wait of the main thread asks whether a signal handler, for instance of Ctrl-C, has interrupted
/// it. A person who presses Ctrl-C does not notice a tenth of a second, and each question takes Python's
/// lock.
inline constexpr std::chrono::milliseconds kInterruptionPeriod{100};

/// How often a wait asks the kernel whether the processes that it waits for still live. Each question is a
/// system call for each process. The failure of a group reaches its ranks after about this time.
inline constexpr std::chrono::milliseconds kLivenessPeriod{100};

/// How often a thread that watches over groups in the background looks. News travels from host to host as
/// fast as a rank notices a dead process on its own host.
inline constexpr std::chrono::milliseconds kWatchPeriod{100};

/// How often a wait for ranks that are still about to join a group checks that they live. Such a check may
/// read from the rendezvous store, which all ranks share.
inline constexpr std::chrono::milliseconds kMeetingPeriod{200};

/// How long a refused connection is left alone before the next attempt. The listener that refuses is about
/// to be opened, or will never be.
inline constexpr std::chrono::milliseconds kRetryPeriod{100};

}  // namespace base
