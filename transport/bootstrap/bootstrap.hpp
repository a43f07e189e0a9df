// The part of the meeting in which ranks exchange their records, and agree on which of them share a host.
#pragma once

#include <vector>

#include "transport/bootstrap/form_host_group.hpp"
#include "transport/bootstrap/meeting.hpp"

namespace vccl {

/// Reads and writes the keys of one communicator's meeting. Records are MessagePack maps with a version.
class Bootstrap {
 public:
  Bootstrap(Meeting& meeting, const CommunicatorConfig& config, const Deadline& deadline)
      : meeting_(meeting), config_(config), names_(config.names()), deadline_(deadline) {}

  /// Publishes this rank's record and returns the records of all ranks, by rank. Throws Error(timeout), which
  /// names the ranks that did not join, Error(protocol) if ranks disagree about the version or the group's
  /// size, and what Meeting::look() throws.
  std::vector<RankRecord> meet(const RankRecord& own);

  /// Returns what Communicator::id() returns. Call this after meet().
  const std::string& id() const { return id_; }

  /// Returns the ranks of every host. Ranks ascend, and hosts are ordered by their lowest rank. `claimed` has
  /// the sets of ranks that claim to share a host. `own` has the ranks that this rank has proved to share its
  /// host. The lowest rank of each set publishes the ranks for which its proof succeeded.
  std::vector<std::vector<int>> agree_on_hosts(const std::vector<std::vector<RankRecord>>& claimed,
                                               const std::vector<int>& own);

  /// Removes the keys that every rank has read. Rank 0 calls this when all ranks are known to have met.
  void clean(const std::vector<std::vector<RankRecord>>& claimed);

 private:
  std::vector<RankRecord> collect();
  std::vector<RankRecord> read_table(const RankRecord& own);
  bool explains(const std::vector<int>& joined) const;
  /// Returns the error for a deadline that passed before every rank had joined.
  Error late();

  Meeting& meeting_;
  const CommunicatorConfig& config_;
  const RankNames names_;
  const Deadline& deadline_;
  std::string id_;
};

/// Returns the sets of ranks whose records claim the same host, ordered by their lowest rank.
std::vector<std::vector<RankRecord>> claimed_hosts(const std::vector<RankRecord>& records);

}  // namespace vccl
