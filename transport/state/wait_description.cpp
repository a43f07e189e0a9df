#include "transport/state/wait_description.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/text.hpp"
#include "transport/messages.hpp"
#include "transport/shared/flags.hpp"

namespace vccl {

std::string waits_text(const Group& group, int index) {
  const auto record = group.host.line(index).waits.read();
  const std::string rank = group.rank_text(group.host.ranks[static_cast<std::size_t>(index)]);
  std::string text;
  for (std::uint32_t i = 0; i < record.waits.count; ++i)
    text += (i == 0 ? " waits in " : " and in ") + record.waits.waits[i].to_string();
  return rank + (text.empty() ? " waits in no collective and for no message" : text);
}

/// Returns the new entry, or null if there is no room.
PublishedWait* WaitDescription::add(const Group& group, const std::string& text) {
  if (result_.count == PublishedWaits::kMax) {
    complete_ = false;
    return nullptr;
  }
  PublishedWait& entry = result_.waits[result_.count++];
  entry.communicator = group.id;
  const auto cut = base::cut_text(text, PublishedWait::kMaxText);
  entry.length = static_cast<std::uint32_t>(cut.size());
  std::ranges::copy(cut, entry.text.begin());
  return &entry;
}

bool WaitDescription::add_far(PublishedWait& entry, Token token, FunctionRef<bool(const WaitFacts&)> holds) {
  if (token == own_) return false;
  asked_.push_back(token);
  const auto found = far_.find(token);
  if (found == far_.end() || entry.awaited_count == PublishedWait::kMaxAwaited || !holds(found->second.facts))
    return false;
  entry.states[entry.awaited_count] = found->second.copy.waits.state;
  entry.awaited[entry.awaited_count++] = token;
  return true;
}

void WaitDescription::add_call(const Group& group, const Call& call) {
  PublishedWait* entry = add(group, call.text);
  if (!entry) return;
  const HostGroup& host = group.host;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i == host.index || !call.awaits(i) || entry->awaited_count == PublishedWait::kMaxAwaited) continue;
    entry->awaited[entry->awaited_count++] = read(host.line(i).process);
  }
  auto holds = [&](const WaitFacts& facts) {
    return facts.has_not_begun(group.id, call.number, call.is_meeting);
  };
  for (const int rank : call.far) add_far(*entry, group.far.at(rank), holds);
}

/// Adds the peer that has to act to an entry of messages. Returns false if it does not count.
bool WaitDescription::add_peer(PublishedWait& entry, const Group& group, int rank) {
  const HostGroup& host = group.host;
  const auto here = std::ranges::find(host.ranks, rank);
  if (here != host.ranks.end()) {
    if (entry.awaited_count == PublishedWait::kMaxAwaited) return false;
    entry.awaited[entry.awaited_count++] =
        read(host.line(static_cast<int>(here - host.ranks.begin())).process);
    return true;
  }
  const auto far = group.far.find(rank);
  if (far == group.far.end()) return false;
  auto holds = [&](const WaitFacts& facts) {
    return facts.has_heard_all(group.id, own_, group.traffic->heard(rank));
  };
  return add_far(entry, far->second, holds);
}

void WaitDescription::add_messages(const Group& group, std::span<const WatchedMessages::Pending> messages) {
  std::set<int> peers;
  for (const auto& message : messages) {
    if (!peers.insert(message.peer).second) continue;
    PublishedWait* entry = add(group, message.text);
    if (!entry) return;
    if (message.peer != kAnySource) {
      add_peer(*entry, group, message.peer);
      continue;
    }
    // A receive from any source ends if any rank acts, so it counts only if all of them are known.
    entry->any = 1;
    bool all_fit = true;
    for (int rank = 0; rank < group.size; ++rank)
      if (rank != group.rank) all_fit &= add_peer(*entry, group, rank);
    if (!all_fit) {
      entry->awaited_count = 0;
      entry->awaited.fill(0);
      entry->states.fill(0);
    }
  }
}

}  // namespace vccl
