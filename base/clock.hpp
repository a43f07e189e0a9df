// The clock that deadlines and timers use.
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

}  // namespace base
