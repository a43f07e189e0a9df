// What the system says of a process, whether it helps or not.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace vccl {

/// What a process does, as the system sees it.
enum class Activity : std::uint8_t {
  computes,  // a thread of it that is none of vccl's own used a processor
  sleeps,
  stopped,  // by SIGSTOP or its like
  traced,   // a debugger has stopped it
  gone,     // it has ended, or is a zombie
};

/// Returns the word for it in texts and in JSON.
const char* name_of(Activity activity);

/// Returns whether the process can go on by itself: it has not ended, and nobody has stopped it.
constexpr bool may_run(Activity activity) {
  return activity == Activity::computes || activity == Activity::sleeps;
}

/// Watches one process between its construction and look().
class ActivityWatch {
 public:
  explicit ActivityWatch(pid_t pid);
  Activity look() const;

 private:
  /// Returns the nanoseconds that the process's threads have computed, without those of vccl's own threads.
  std::uint64_t computed() const;

  const pid_t pid_;
  const std::uint64_t computed_;
  const std::int64_t since_ns_;
};

}  // namespace vccl
