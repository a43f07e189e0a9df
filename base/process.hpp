// Other processes of the machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace base {

/// Returns the process that an entry of /proc stands for, or nothing if it stands for something else.
std::optional<pid_t> process_number(std::string_view name);

/// What /proc/<pid>/stat says of a process.
struct ProcessStatus {
  char state = 'X';  // 'R', 'S', 'T', ...; 'X' if there is no such process
  pid_t parent = 0;
  std::uint64_t start = 0;  // in ticks since the machine's start
};
ProcessStatus status_of(pid_t pid);

/// Returns when the process was started, in ticks since the machine's start, plus 1. Returns 0 if it has
/// ended, even if its parent has not noticed yet. A process number belongs to another process later, which
/// was started at another time.
std::uint64_t birth_of(pid_t pid);

}  // namespace base
