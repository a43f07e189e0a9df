// Files with dumps of flight recorders.
#pragma once

namespace vccl {

/// Writes the dump of this process because somebody has asked for it, as `reason` says ("SIGUSR1"). It goes
/// to the file that the variables name, or else to torch's default place, and to the registered
/// DebugInfoWriter. What goes wrong is said on stderr.
void write_dump(const char* reason) noexcept;

/// Call this when an operation of this rank has failed. If the variables name a file, or ask for a dump
/// anyway, the dump is written, and so are the dumps of the job's other processes on this host which have not
/// written theirs, such as a rank that never came. A registered DebugInfoWriter gets the dump of this
/// process. All this happens at most once a second, because the operations behind a failure fail, too.
void dump_after_failure() noexcept;

/// Blocks until no other thread writes a dump. Call this before the process ends.
void wait_for_dump() noexcept;

}  // namespace vccl
