// Circles of processes that wait for each other, in what they have published of their waits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "transport/shared/wait_record.hpp"

namespace vccl {

/// Names a process: RankLine::process.
using Token = std::uint64_t;
using Records = std::map<Token, WaitRecord::Copy>;

/// Returns the largest set in which every wait of each member is for at least one member, or for members only
/// if any of the awaited processes could end it. If `only_blocked`,
/// members are processes that cannot go on before one of their waits ends.
std::set<Token> waiting_for_each_other(const Records& records, bool only_blocked);

/// Returns the `members` that `first` waits for, directly or not, and `first` itself. Empty if `first`
/// is no member.
std::set<Token> awaited_from(Token first, const std::set<Token>& members, const Records& records);

/// Tells whether the records of some processes have kept their versions.
class HeldVersions {
 public:
  /// Returns whether the members' records have kept their versions for `for_looks` looks of each since they
  /// were first seen together, which is in an earlier call with the same members and versions. `rounds` is
  /// WaitExchange::rounds() before the records were put together.
  bool have_held(const std::set<Token>& members, const Records& records, std::uint64_t for_looks,
                 std::uint64_t rounds);

 private:
  // A process on another host writes its record once more while an earlier one is under way to the store, and
  // what it writes may have been found before that one had come there. So one more look has to be waited for.
  static constexpr std::uint64_t kUnderWay = 1;

  struct Seen {
    std::uint64_t version = 0;
    std::optional<std::uint64_t> looks;  // at a time when all had been seen
  };
  std::map<Token, Seen> seen_;
  std::uint64_t first_round_ = 0;
};

}  // namespace vccl
