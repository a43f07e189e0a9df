// Circles of processes that wait for each other, in what they have published of their waits.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "transport/shared/wait_record.hpp"

namespace vccl {

/// Names a process: RankLine::process.
using Token = std::uint64_t;
using Records = std::map<Token, WaitRecord::Copy>;

/// Returns the largest set in which every wait of each member is for at least one member. If `only_blocked`,
/// members are processes that cannot go on before one of their waits ends.
std::set<Token> waiting_for_each_other(const Records& records, bool only_blocked);

/// Returns the `members` that `first` waits for, directly or not, and `first` itself. Empty if `first`
/// is no member.
std::set<Token> awaited_from(Token first, const std::set<Token>& members, const Records& records);

}  // namespace vccl
