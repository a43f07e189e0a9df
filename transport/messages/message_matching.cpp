#include "transport/messages/message_matching.hpp"

#include <algorithm>

namespace vccl {
namespace {

bool fits(int from, int source) {
  return from == kAnySource || from == source;
}

/// Removes the first entry of `tag` that fits from `waiting`, and returns it.
template <class Entry, class Fits>
std::optional<Entry> take_first(std::map<MessageTag, std::list<Entry>>& waiting, MessageTag tag, Fits fits) {
  const auto entries = waiting.find(tag);
  if (entries == waiting.end()) return std::nullopt;
  const auto first = std::find_if(entries->second.begin(), entries->second.end(), fits);
  if (first == entries->second.end()) return std::nullopt;
  std::optional<Entry> found(std::move(*first));
  entries->second.erase(first);
  // A program may use each tag only once, so an empty list is removed.
  if (entries->second.empty()) waiting.erase(entries);
  return found;
}

}  // namespace

std::optional<Arrival> MessageMatching::find_arrival(int from, MessageTag tag) {
  return take_first(arrivals_, tag, [&](const Arrival& arrival) { return fits(from, arrival.source); });
}

std::optional<std::uint64_t> MessageMatching::find_receive(int source, MessageTag tag) {
  const auto found =
      take_first(receives_, tag, [&](const Receive& receive) { return fits(receive.from, source); });
  if (!found) return std::nullopt;
  const auto waiting = waiting_.find(found->from);
  if (--waiting->second == 0) waiting_.erase(waiting);
  return found->number;
}

void MessageMatching::add_receive(std::uint64_t number, int from, MessageTag tag) {
  receives_[tag].push_back({number, from});
  ++waiting_[from];
}

std::map<MessageTag, std::size_t> MessageMatching::unreceived(int from) const {
  std::map<MessageTag, std::size_t> counts;
  for (const auto& [tag, arrivals] : arrivals_) {
    const auto count = std::count_if(arrivals.begin(), arrivals.end(),
                                     [&](const Arrival& arrival) { return fits(from, arrival.source); });
    if (count > 0) counts[tag] = static_cast<std::size_t>(count);
  }
  return counts;
}

}  // namespace vccl
