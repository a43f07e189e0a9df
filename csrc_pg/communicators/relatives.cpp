#include "csrc_pg/communicators/relatives.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"

namespace vccl {

Relatives::Relatives(std::vector<Relative> relatives, const std::vector<std::uint64_t>& global_ranks) {
  for (Relative& relative : relatives) {
    const auto& theirs = relative.global_ranks;
    std::vector<int> rank_there;
    for (const auto global : global_ranks) {
      const auto found = std::ranges::find(theirs, global);
      rank_there.push_back(found == theirs.end() ? -1 : static_cast<int>(found - theirs.begin()));
    }
    known_.push_back({std::move(relative), std::move(rank_there)});
  }
}

void Relatives::check() {
  for (const Known& known : known_) {
    const auto communicator = known.relative.communicator.lock();
    if (!communicator) continue;
    communicator->look_around();
    if (known.relative.of_same_group) communicator->check();
  }
}

std::optional<RankEnd> Relatives::end_of(int rank) {
  for (const Known& known : known_) {
    const int there = known.rank_there.at(static_cast<std::size_t>(rank));
    const auto communicator = known.relative.communicator.lock();
    if (!communicator || there < 0) continue;
    const auto end = communicator->end_of(there);
    // A rank that has left another group may still be in this one, as long as its process lives.
    if (end && (end->process_ended || known.relative.of_same_group)) return end;
  }
  return std::nullopt;
}

std::string Relatives::deaths() {
  std::string text;
  for (const Known& known : known_) {
    const auto communicator = known.relative.communicator.lock();
    if (!communicator || known.relative.of_same_group) continue;
    for (int rank = 0; rank < communicator->size(); ++rank) {
      if (std::ranges::find(known.rank_there, rank) != known.rank_there.end()) continue;
      const auto end = communicator->end_of(rank);
      if (!end || end->how == RankEnd::How::left) continue;
      text += base::text(text.empty() ? "" : "; ", end->text(communicator->names(), rank), " in group ",
                         communicator->name());
    }
  }
  return text;
}

}  // namespace vccl
