// How the profiler shows a collective on a card's lanes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "csrc_device/runtime/activity.hpp"
#include "csrc_pg/operations/request.hpp"

namespace vccl {

/// What a label tells about the group and the place of the operation in it.
struct LabelledGroup {
  const std::string& name;
  const std::string& description;
  int rank, size;
  std::uint64_t sequence;
};

/// Returns the label of a task that does `requests`, which are several if they were coalesced. `name` is the
/// operation's. The bytes and the factor of the bus bandwidth are those of NCCL's tests: the bytes of the
/// longest buffer, and the share of them that passes the busiest link.
vdev::ActivityLabel label_of(std::span<const Request> requests, const char* name, const LabelledGroup& group);

}  // namespace vccl
