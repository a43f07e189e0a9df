// Meeting over the store: who takes part, and which ranks turned out to share a host.
#pragma once

#include <vector>

#include "transport/host_group.hpp"

namespace vccl {

/// The keys of one group's meeting. Records are MessagePack maps with a version.
class Bootstrap {
 public:
  Bootstrap(Store& store, const CommunicatorConfig& config, const Deadline& deadline)
      : store_(store), config_(config), deadline_(deadline) {}

  /// Announces this rank and returns everybody's record, by rank. Throws Error(timeout) naming who did not
  /// come, Error(protocol) for ranks that disagree about the version or the group's size.
  std::vector<RankRecord> meet(const RankRecord& own);

  /// Every host's ranks, ascending, hosts by their lowest rank. `claimed` are the sets of ranks that claim
  /// one host; the lowest rank of each tells all others (through `own`) which of them the proof succeeded
  /// for.
  std::vector<std::vector<int>> agree_on_hosts(const std::vector<std::vector<RankRecord>>& claimed,
                                               const std::vector<int>& own);
  /// In place of agree_on_hosts, when this rank leads a host and could not bind it together.
  void give_up(const Error& error) noexcept;
  /// Throws the error with which the leader of our host gave up, if it said so, or Error(peer_dead) if it
  /// died.
  void ask_why(const RankRecord& leader);

  /// Removes what everybody has read. Rank 0 calls it when all ranks are known to be through.
  void clean(const std::vector<std::vector<RankRecord>>& claimed);

 private:
  std::vector<RankRecord> collect();
  std::vector<int> missing();

  Store& store_;
  const CommunicatorConfig& config_;
  const Deadline& deadline_;
  RankRecord own_;  // from meet() on
};

/// The sets of ranks whose records claim the same host, ordered by their lowest rank.
std::vector<std::vector<RankRecord>> claimed_hosts(const std::vector<RankRecord>& records);

}  // namespace vccl
