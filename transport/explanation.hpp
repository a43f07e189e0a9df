// What keeps the ranks that a wait is for, as the rooms above can find out.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "transport/deadline.hpp"

namespace vccl {

/// Finds out why ranks of this process's job wait. The transport cannot know that itself: it sees neither the
/// other groups of a rank nor its Python stack.
struct Explainer {
  /// Returns sentences like "Ranks 0, 1 wait in all_reduce for rank 2. Rank 2 sleeps in load (data.py:31).",
  /// or an empty text. `waited` is for how long the caller has waited. May take two
  /// seconds, and some more if other hosts do not answer. The caller may hold locks of the transport.
  std::string (*explain)(std::chrono::nanoseconds waited) = nullptr;
  /// Returns sentences that say which two calls the ranks `rank` and `other` of the job have made in
  /// different order, one of them the oldest collective of `group` that is not over. May be empty. The caller
  /// may hold locks of the transport.
  std::string (*explain_order)(const std::string& group, std::uint64_t rank, std::uint64_t other) = nullptr;
  /// Returns whether the main thread of the program waits for other ranks, or may do so.
  bool (*program_waits)() = nullptr;
};

/// Sets the explainer for the rest of the process.
void set_explainer(const Explainer& explainer) noexcept;

/// How many ranks of a group that is being made find out what keeps the missing, for all the others.
inline constexpr int kMostExplaining = 8;

/// Returns " " and the explanation, or an empty text if there is none.
std::string explanation(std::chrono::nanoseconds waited);
std::string explanation_of_order(const std::string& group, std::uint64_t rank, std::uint64_t other);
bool program_waits();

/// Tells when a wait has lasted so long that the user has to learn of it: once after `warn_after`, unless
/// this is 0, and once ten seconds before the deadline.
class WaitWarning {
 public:
  WaitWarning(Clock::time_point begin, const Deadline& deadline, Milliseconds warn_after);
  /// Returns whether a warning is due. Each is due once.
  bool due(Clock::time_point now);

 private:
  Clock::time_point first_, last_;
};

}  // namespace vccl
