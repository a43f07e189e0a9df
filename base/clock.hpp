// The clock that deadlines and timers use, and the period at which a sleeping wait checks for an
// interruption.
#pragma once

#include <chrono>
#include <cstdint>

namespace base {

/// Returns the nanoseconds of the steady clock.
inline std::int64_t monotonic_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The period at which a sleeping wait checks whether its thread was interrupted, for instance by Ctrl-C.
inline constexpr std::chrono::milliseconds kInterruptionPeriod{100};

}  // namespace base
