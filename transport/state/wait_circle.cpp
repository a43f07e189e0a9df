#include "transport/state/wait_circle.hpp"

#include <algorithm>
#include <vector>

namespace vccl {
namespace {

/// Returns whether the wait cannot end before a member acts.
bool depends_on(const PublishedWait& wait, const std::set<Token>& members, const Records& records) {
  std::uint32_t of_members = 0;
  for (std::uint32_t i = 0; i < wait.awaited_count; ++i) {
    const Token token = wait.awaited[i];
    if (!members.contains(token)) continue;
    if (wait.states[i] == 0 || wait.states[i] == records.at(token).waits.state) ++of_members;
  }
  return wait.any == 1 ? of_members > 0 && of_members == wait.awaited_count : of_members > 0;
}

}  // namespace

std::set<Token> waiting_for_each_other(const Records& records, bool only_blocked) {
  std::set<Token> members;
  for (const auto& [token, record] : records) {
    if (record.waits.count > 0 && (record.waits.blocked == 1 || !only_blocked)) members.insert(token);
  }
  const auto can_go_on = [&](Token token) {
    const PublishedWaits& waits = records.at(token).waits;
    return !std::all_of(waits.waits.begin(), waits.waits.begin() + waits.count,
                        [&](const auto& wait) { return depends_on(wait, members, records); });
  };
  while (std::erase_if(members, can_go_on) > 0) {
  }
  return members;
}

bool HeldVersions::have_held(const std::set<Token>& members, const Records& records, std::uint64_t for_looks,
                             std::uint64_t rounds) {
  const bool same = seen_.size() == members.size() && std::ranges::all_of(members, [&](Token member) {
                      const auto found = seen_.find(member);
                      return found != seen_.end() && found->second.version == records.at(member).version;
                    });
  if (!same) {
    seen_.clear();
    first_round_ = rounds;
    for (const Token member : members) {
      const WaitRecord::Copy& record = records.at(member);
      seen_[member] = {record.version, record.round == 0 ? std::optional(record.looks) : std::nullopt};
    }
    return false;
  }
  bool held = !members.empty();
  for (auto& [member, seen] : seen_) {
    const WaitRecord::Copy& record = records.at(member);
    // What was read of another host before may have been old when the members were first seen together.
    if (!seen.looks && record.round > first_round_) seen.looks = record.looks;
    const std::uint64_t more = record.round == 0 ? for_looks : for_looks + kUnderWay;
    held &= seen.looks && record.looks >= *seen.looks + more;
  }
  return held;
}

std::set<Token> awaited_from(Token first, const std::set<Token>& members, const Records& records) {
  std::set<Token> found;
  std::vector<Token> left;
  if (members.contains(first)) left.push_back(first);
  while (!left.empty()) {
    const Token token = left.back();
    left.pop_back();
    if (!found.insert(token).second) continue;
    const PublishedWaits& waits = records.at(token).waits;
    for (std::uint32_t i = 0; i < waits.count; ++i) {
      const PublishedWait& wait = waits.waits[i];
      for (std::uint32_t j = 0; j < wait.awaited_count; ++j)
        if (members.contains(wait.awaited[j])) left.push_back(wait.awaited[j]);
    }
  }
  return found;
}

}  // namespace vccl
