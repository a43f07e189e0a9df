#include "transport/state/wait_circle.hpp"

#include <algorithm>
#include <vector>

namespace vccl {
namespace {

bool awaits_one_of(const PublishedWait& wait, const std::set<Token>& members) {
  return std::any_of(wait.awaited.begin(), wait.awaited.begin() + wait.awaited_count,
                     [&](Token token) { return members.contains(token); });
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
                        [&](const auto& wait) { return awaits_one_of(wait, members); });
  };
  while (std::erase_if(members, can_go_on) > 0) {
  }
  return members;
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
