// The ranks of a group that share this host, and where the memory lies that they share.
#pragma once

#include <memory>
#include <vector>

#include "transport/shared/control_memory.hpp"
#include "transport/system/peer_process.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {

/// The ranks of one host for which the proof succeeded, in ascending order. Indices below are positions in
/// `ranks`.
struct HostGroup {
  std::vector<int> ranks;
  int index = 0;         // this rank's
  int layout_ranks = 0;  // the number of ranks that the control memory was laid out for: those that claimed
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

}  // namespace vccl
