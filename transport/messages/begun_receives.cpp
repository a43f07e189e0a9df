#include "transport/messages/begun_receives.hpp"

#include <algorithm>
#include <type_traits>

namespace vccl {
namespace {

constexpr std::size_t kKinds = std::extent_v<decltype(ChannelCounters::begun)>;

/// Messages of two kinds never meet each other.
std::optional<std::size_t> kind_of(MessageTag tag) {
  if (tag.number == MessageTag::kNoneAlone) return 0;
  if (tag.number == MessageTag::kNoneInBatch) return 1;
  return std::nullopt;
}

}  // namespace

BegunReceives::BegunReceives(const Group& group)
    : group_(group), sends_(new std::atomic<std::uint64_t>[group.host.ranks.size() * kKinds]()) {}

std::optional<std::size_t> BegunReceives::index_of(int rank) const {
  const auto& ranks = group_.host.ranks;
  const auto found = std::ranges::lower_bound(ranks, rank);
  if (found == ranks.end() || *found != rank) return std::nullopt;
  return static_cast<std::size_t>(found - ranks.begin());
}

// The counts are relaxed: the message itself brings what belongs to it, and a count that is seen late only
// lets a send be copied.
void BegunReceives::count_receive(int from, MessageTag tag) {
  const auto kind = kind_of(tag);
  const auto index = index_of(from);
  if (!kind || !index) return;
  const auto own = static_cast<std::size_t>(group_.host.index);
  auto& begun = group_.host.messages().channel(*index, own).counters->begun[*kind];
  begun.store(begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

bool BegunReceives::count_send(int to, MessageTag tag) {
  const auto kind = kind_of(tag);
  const auto index = index_of(to);
  if (!kind || !index) return false;
  const auto own = static_cast<std::size_t>(group_.host.index);
  const auto before = sends_[*index * kKinds + *kind].fetch_add(1, std::memory_order_relaxed);
  return group_.host.messages().channel(own, *index).counters->begun[*kind].load(std::memory_order_relaxed) >
         before;
}

}  // namespace vccl
