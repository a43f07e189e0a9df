// How the turn goes from one thread to the next, also where a thread sleeps that has it.
#pragma once

#include <cstdint>

#include "base/schedule/table.hpp"

namespace base::schedule {

/// Gives the turn to the next thread, if nobody has it. The caller holds the lock, which is released
/// meanwhile if the schedule is exact.
void hand_on(Table& table, TableLock& lock) noexcept;

/// Takes the turn from its holder, which keeps on running until it comes to a point. The caller holds the
/// lock.
void take_from_holder(Table& table) noexcept;

/// Watches the thread that has the turn, for a thread that waits for it.
class Watch {
 public:
  /// Call this every kLook. Takes the turn from a thread that sleeps where the schedule does not know it,
  /// that has ended, that has not come, or that goes on for too long, and hands it on.
  void look(Table& table) noexcept;

  static constexpr std::int64_t kLook = 1'000'000;  // nanoseconds

 private:
  bool is_stuck(const Table& table) noexcept;

  std::int32_t holder_ = kNobody;
  std::uint64_t progress_ = 0;
  std::uint64_t steps_ = 0;
  int asleep_ = 0;          // looks in a row at which the holder slept
  int looks_ = 0;           // looks in a row at which it had the turn
  std::int64_t began_ = 0;  // its time on a core at the first of them
};

}  // namespace base::schedule
