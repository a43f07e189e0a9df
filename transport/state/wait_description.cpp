#include "transport/state/wait_description.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/text.hpp"
#include "transport/messages.hpp"
#include "transport/shared/flags.hpp"

namespace vccl {

std::uint64_t id_of_communicator(const Group& group) {
  std::uint64_t id = 0;
  std::memcpy(&id, ControlLayout::header(group.host.control->base())->nonce, sizeof id);
  return id;
}

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
  entry.communicator = id_of_communicator(group);
  const auto cut = base::cut_text(text, PublishedWait::kMaxText);
  entry.length = static_cast<std::uint32_t>(cut.size());
  std::ranges::copy(cut, entry.text.begin());
  return &entry;
}

void WaitDescription::add_call(const Group& group, const std::string& text, FunctionRef<bool(int)> awaits) {
  PublishedWait* entry = add(group, text);
  if (!entry) return;
  const HostGroup& host = group.host;
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i == host.index || !awaits(i) || entry->awaited_count == PublishedWait::kMaxAwaited) continue;
    entry->awaited[entry->awaited_count++] = read(host.line(i).process);
  }
}

void WaitDescription::add_messages(const Group& group, std::span<const WatchedMessages::Pending> messages) {
  const HostGroup& host = group.host;
  // A receive from any source ends if any rank acts, so it counts only if all of them are known.
  const bool all_are_here = static_cast<int>(host.ranks.size()) == group.size;
  const bool all_fit = host.ranks.size() <= PublishedWait::kMaxAwaited + 1;
  std::set<int> peers;
  for (const auto& message : messages) {
    if (!peers.insert(message.peer).second) continue;
    PublishedWait* entry = add(group, message.text);
    if (!entry) return;
    entry->any = message.peer == kAnySource;
    for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
      const bool named = host.ranks[static_cast<std::size_t>(i)] == message.peer;
      const bool one_of_all = message.peer == kAnySource && i != host.index && all_are_here && all_fit;
      if (named || one_of_all) entry->awaited[entry->awaited_count++] = read(host.line(i).process);
    }
  }
}

}  // namespace vccl
