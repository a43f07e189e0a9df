// The schedule of this process: which one is on, and what its threads share.
#pragma once

#include <cstdint>

#include "base/schedule/table.hpp"

namespace base::schedule {

struct Running {
  Table* table = nullptr;  // null if no schedule is on
  std::uint64_t generation = 0;
};
/// Returns the schedule that is on.
Running running_schedule() noexcept;
/// Returns a number that changes when a schedule begins or ends.
std::uint64_t current_generation() noexcept;

/// Takes a slot for a thread of this process. Returns kNobody if there are too many. Threads that were
/// announced (State::coming) have numbers of their own, because when others come depends on time. The caller
/// holds the lock.
int add_thread(Table& table, State state) noexcept;

/// Returns for how many nanoseconds this process is held up before its next operation with others.
std::int64_t next_delay() noexcept;

struct InterpreterLock {
  void* (*release)();
  void (*take)(void* state);
  bool (*held)();
};
InterpreterLock interpreter_lock() noexcept;

/// Lets the other threads of this process go on until each sleeps or is outside, if the calling thread takes
/// part in the schedule that is on. Otherwise time would decide how far they are when the next schedule
/// begins.
void let_others_come_to_rest() noexcept;

}  // namespace base::schedule
