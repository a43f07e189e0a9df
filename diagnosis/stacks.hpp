// The Python stacks of other processes, which these write when they get a signal.
//
// A process that serves stacks (csrc_pg/dumps/stack_requests.hpp) has a memfd with a known name, open with
// O_APPEND, to which it appends the stacks of all Python threads when a thread of this project gets
// kStackSignal. No system call of the program is interrupted. If Python's lock can be had at once, Python
// writes the stacks. Otherwise, where a thread holds the lock in C code, faulthandler does, which walks the
// frames without the lock. Two lines follow: "main <the main thread as pthread_self() names it, in
// hexadecimal; 0 if unknown> <waits | goes on>", and "lock <held | free>", which says whether Python's lock
// could be had at once.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vccl {

/// The name of the memfd, by which it is found in /proc.
inline constexpr char kStackMemoryName[] = "vccl-stacks";
/// What asks for stacks. The system ignores this signal in a process without a handler, so it cannot end a
/// process that was started anew under the same number.
inline constexpr int kStackSignal = SIGURG;
/// The name of the thread that gets the signal.
inline constexpr char kStackThread[] = "vccl dumps";

struct Frame {
  std::string file, function;
  int line = 0;

  bool operator==(const Frame&) const = default;
};

struct ThreadStack {
  std::uint64_t thread = 0;   // as pthread_self() names it
  std::vector<Frame> frames;  // the innermost first
};

/// What a process has answered.
struct Stacks {
  std::vector<ThreadStack> threads;  // those that run Python; the main thread first, if it is known
  bool main_known = false;           // whether the main thread has answered
  bool waits = false;                // whether the main thread waits for other ranks (base::ThreadWaits)
  bool lock_held = false;            // whether Python's lock could not be had for a while
};

/// Asks processes of this user, all at the same time, and waits at most `patience` for their answers. The
/// result has an answer for each process; it is empty for one that serves no stacks, or does not answer. None
/// of the programs' threads is interrupted. A stopped process answers when it goes on. Where several
/// processes ask the same one, they take turns.
std::vector<std::optional<Stacks>> ask_for_stacks(const std::vector<pid_t>& pids,
                                                  std::chrono::milliseconds patience);

/// Reads an answer. Returns nothing if its last line has not been written. Lines that cannot be understood
/// are left out.
std::optional<Stacks> parse_stacks(std::string_view text);

}  // namespace vccl
