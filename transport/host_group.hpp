// The ranks of a group that share this host, bound together by shared memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/flags.hpp"
#include "transport/handover.hpp"
#include "transport/liveness.hpp"
#include "transport/rank_record.hpp"
#include "transport/segment.hpp"

namespace vccl {

/// The proven ranks of one host, in order; indices below are positions in `ranks`.
struct HostGroup {
  std::vector<int> ranks;
  int index = 0;  // ours
  int layout_ranks =
      0;  // what the control segment was laid out for: the ranks that claimed to be on this host
  std::shared_ptr<Mapping> control;
  std::vector<std::vector<std::shared_ptr<Mapping>>> regions;  // of each rank
  std::vector<PeerProcess> processes;                          // of each rank

  RankLine& line(int i) const { return *ControlLayout::line(control->base(), i); }
  FailureRecord& failure() const { return ControlLayout::header(control->base())->failure; }
  std::atomic<std::uint64_t>& shares_done() const {
    return ControlLayout::header(control->base())->shares_done;
  }
  std::byte* payload(int i, std::uint64_t sequence) const {
    return ControlLayout(layout_ranks).payload(control->base(), i, sequence);
  }
  std::byte* slots(int i) const { return ControlLayout(layout_ranks).slots(control->base(), i); }
  MessageLayout messages() const { return ControlLayout(layout_ranks).messages(control->base()); }
};

/// Puts the ranks in `candidates` (which claim our host; ascending, with ours) together: the lowest one
/// leads, makes the control segment and hands it and everybody's regions out. A candidate belongs to the
/// group when it has mapped the segment and read the nonce in it; one that cannot be reached becomes a host
/// of its own. Throws Error(bootstrap | timeout | protocol | system).
HostGroup form_host_group(Store& store, const std::vector<RankRecord>& candidates, int rank,
                          std::span<const Region> regions, Listener& listener, const Deadline& deadline);

}  // namespace vccl
