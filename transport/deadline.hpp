// The time at which a wait gives up.
#pragma once

#include <chrono>

namespace vccl {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// A point on the monotonic clock. `length` is the timeout that it was made from, which error messages name.
struct Deadline {
  Clock::time_point at;
  Milliseconds length;

  static Deadline in(Milliseconds length) { return {Clock::now() + length, length}; }
  bool passed() const { return Clock::now() >= at; }
};

}  // namespace vccl
