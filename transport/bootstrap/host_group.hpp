// The ranks of a group that share this host and its shared memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/bootstrap/rank_record.hpp"
#include "transport/bootstrap/unix_socket.hpp"
#include "transport/host/peer_process.hpp"
#include "transport/host/segment.hpp"
#include "transport/state/control_segment.hpp"

namespace vccl {

/// The ranks of one host for which the proof succeeded, in ascending order. Indices below are positions in
/// `ranks`.
struct HostGroup {
  std::vector<int> ranks;
  int index = 0;         // this rank's
  int layout_ranks = 0;  // the number of ranks that the control segment was laid out for: those that claimed
                         // to be on this host
  std::shared_ptr<Mapping> control;
  std::vector<std::vector<std::shared_ptr<Mapping>>> regions;  // of each rank
  std::vector<PeerProcess> processes;                          // of each rank

  RankLine& line(int i) const { return *ControlLayout::line(control->base(), i); }
  FailureRecord& failure() const { return ControlLayout::header(control->base())->failure; }
  LostRecord& lost() const { return ControlLayout::header(control->base())->lost; }
  std::atomic<std::uint64_t>& work_items_done() const {
    return ControlLayout::header(control->base())->work_items_done;
  }
  std::byte* payload(int i, std::uint64_t sequence) const {
    return ControlLayout(layout_ranks).payload(control->base(), i, sequence);
  }
  std::byte* slots(int i) const { return ControlLayout(layout_ranks).slots(control->base(), i); }
  MessageLayout messages() const { return ControlLayout(layout_ranks).messages(control->base()); }
};

/// Forms the host group of the ranks in `candidates`, which claim to be on this host. They ascend and include
/// this rank. The lowest rank leads: it makes the control segment, and hands the segment and all ranks'
/// regions to the others. A candidate belongs to the host group once it has mapped the segment and read the
/// nonce in it. A candidate that cannot reach the leader becomes a host of its own. While ranks wait for each
/// other they call `look`, which may throw why the wait is in vain. Throws Error(bootstrap | timeout |
/// protocol | system | peer_dead | aborted).
HostGroup form_host_group(
    Store& store, const RankNames& names, const std::vector<RankRecord>& candidates, int rank,
    std::span<const Region> regions, Listener& listener, const Deadline& deadline,
    const std::function<void()>& look = [] {});

}  // namespace vccl
