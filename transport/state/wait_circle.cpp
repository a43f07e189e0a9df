#include "transport/state/wait_circle.hpp"

#include <algorithm>
#include <vector>

namespace vccl {
namespace {

/// Returns whether the wait cannot end before a member acts.
bool depends_on(const PublishedWait& wait, const std::set<Token>& members) {
  const auto begin = wait.awaited.begin(), end = begin + wait.awaited_count;
  const auto is_member = [&](Token token) { return members.contains(token); };
  return wait.any == 1 ? begin != end && std::all_of(begin, end, is_member)
                       : std::any_of(begin, end, is_member);
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
                        [&](const auto& wait) { return depends_on(wait, members); });
  };
  while (std::erase_if(members, can_go_on) > 0) {
  }
  return members;
}

bool HeldVersions::have_held(const std::set<Token>& members, const Records& records,
                             std::uint64_t for_looks) {
  const bool same = first_seen_.size() == members.size() && std::ranges::all_of(members, [&](Token member) {
                      const auto found = first_seen_.find(member);
                      return found != first_seen_.end() && found->second.first == records.at(member).version;
                    });
  if (!same) {
    first_seen_.clear();
    for (const Token member : members)
      first_seen_[member] = {records.at(member).version, records.at(member).looks};
    return false;
  }
  return !members.empty() && std::ranges::all_of(members, [&](Token member) {
    return records.at(member).looks >= first_seen_.at(member).second + for_looks;
  });
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
