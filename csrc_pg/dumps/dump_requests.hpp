// Dumps that somebody asks a running process for.
#pragma once

#include <atomic>
#include <chrono>

namespace vccl {

/// While a process has one of these, it writes a dump when it gets SIGUSR1, unless the program has a handler
/// of its own, when the file appears that VCCL_RECORDER_TRIGGER names, and when somebody writes into its
/// pipe (DumpPipe). Each group has one. The process has its rank by then, which is in the pipe's name. A
/// thread waits for all of them without waking up in between, and ends with the last of these objects. The
/// thread also gets the signals by which others ask for the stacks of this process: so these interrupt no
/// thread of the program, for whose system calls they would be an error.
class DumpRequests {
 public:
  /// Throws Error(invalid) if the file's folder cannot be watched, or the pipe cannot be made.
  DumpRequests();
  ~DumpRequests() { end(kPatience); }
  DumpRequests(const DumpRequests&) = delete;
  DumpRequests& operator=(const DumpRequests&) = delete;

  /// Ends that earlier, and waits at most as long for a dump that is being written. Further calls do nothing.
  void end(std::chrono::milliseconds patience) noexcept;

 private:
  static constexpr std::chrono::milliseconds kPatience{5'000};

  const int generation_;  // a forked child has the object and not the thread
  std::atomic<bool> ended_{false};
};

/// Makes the thread answer a request for the stacks of this process (stack_requests.hpp). The
/// handler of a signal may call this. Does nothing while there is no thread.
void wake_requests_for_stacks() noexcept;

}  // namespace vccl
