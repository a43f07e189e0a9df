#include "transport/state/group.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "transport/shared/flags.hpp"

namespace vccl {

std::string Group::host_name(int rank) const {
  const auto found = host_names.find(rank);
  return found == host_names.end() ? "" : found->second;
}

std::optional<RankEnd> Group::end_of(int rank) const noexcept {
  const auto found = std::ranges::find(host.ranks, rank);
  if (found == host.ranks.end()) {
    const auto other = elsewhere.find(rank);
    if (other == elsewhere.end() || !other->second.dead()) return std::nullopt;
    return RankEnd{RankEnd::How::ended, other->second.pid(), true, host_name(rank)};
  }
  const auto index = static_cast<int>(found - host.ranks.begin());
  const PeerProcess& process = host.processes[static_cast<std::size_t>(index)];
  // The order matters: a rank leaves before its process ends, so a rank seen dead has already set its state.
  const bool dead = process.dead();
  if (read(host.line(index).state) == RankState::left)
    return RankEnd{RankEnd::How::left, process.pid(), dead};
  if (!dead) return std::nullopt;
  return RankEnd{RankEnd::How::died, process.pid()};
}

std::string Group::describe_signature(const Signature& signature) const {
  if (describe) return describe(signature, names);
  return base::text("collective ", signature.collective, "(dtype ", signature.dtype, ", ", signature.count,
                    " elements, op ", signature.op, ", root ", signature.root, ", extra ", signature.extra,
                    ")");
}

std::vector<int> far_ranks(const Group& group) {
  constexpr std::size_t kMost = 64;
  std::vector<int> ranks;
  for (int step = 1; step < group.size && ranks.size() < kMost; ++step)
    if (const int rank = (group.rank + step) % group.size; group.far.contains(rank)) ranks.push_back(rank);
  return ranks;
}

}  // namespace vccl
