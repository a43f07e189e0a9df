// What is drawn from the seed: who goes on next, and for how long a process is held up.
#pragma once

#include <cstdint>

#include "base/schedule/table.hpp"

namespace base::schedule {

/// Returns the next number of a sequence from 0 to `below` - 1.
std::uint64_t draw(std::uint64_t& sequence, std::uint64_t below) noexcept;

/// Draws what a schedule needs before its first step. The caller holds the table's lock, as for the others.
void draw_beginning(Table& table) noexcept;
/// Returns the priority with which a thread begins. It depends only on the seed and the thread's number, so
/// the order in which threads come does not matter.
std::int64_t first_priority(const Table& table, std::int32_t process, std::uint32_t number) noexcept;
/// Returns the slot of the thread that goes on next, or kNobody if none can.
int choose(Table& table) noexcept;

/// Draws for how long a process is held up before an operation, if processes have a turn each.
class Delays {
 public:
  explicit Delays(const Plan& plan) noexcept;
  /// Returns nanoseconds.
  std::int64_t next() noexcept;

 private:
  std::int64_t any() noexcept;

  Kind kind_;
  std::uint64_t random_;
  std::int64_t lag_ = 0;                             // of a process with PCT, until it changes
  std::array<std::uint64_t, kMostDepth> changes_{};  // the operations at which it does, or 0
  std::uint64_t operations_ = 0;
};

}  // namespace base::schedule
