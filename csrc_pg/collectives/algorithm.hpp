// What the selector knows of an algorithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// One way to do one collective. `run` works inside an Operation with the call's window (call.hpp): it moves
/// blocks to the right neighbour and from the left one, and returns when this rank's output is complete (what
/// it posted last may still be on its way; the Operation drains it). The call is valid, and has a kernel.
struct Algorithm {
  const char* name;  // of the family, as VCCL_ALGO names it: "ring"
  Collective collective;
  bool across_hosts;      // false: for groups that live on one host
  std::size_t min_bytes;  // of the longest buffer, both included: where it is the one to take
  std::size_t max_bytes;
  void (*run)(Communicator& communicator, const Call& call);
};

inline constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();

/// Every algorithm there is, the preferred ones first.
std::span<const Algorithm> algorithms() noexcept;

/// The first of them that works for the call on this communicator. The same on every rank, since it looks at
/// nothing that ranks do not share. Throws Error(unsupported) naming the call.
const Algorithm& select_algorithm(const Communicator& communicator, const Call& call);

// One file each.
void ring_all_reduce(Communicator& communicator, const Call& call);
void ring_all_gather(Communicator& communicator, const Call& call);
void ring_broadcast(Communicator& communicator, const Call& call);
void ring_reduce_scatter(Communicator& communicator, const Call& call);
void ring_reduce(Communicator& communicator, const Call& call);
void ring_gather(Communicator& communicator, const Call& call);
void ring_scatter(Communicator& communicator, const Call& call);
void ring_all_to_all(Communicator& communicator, const Call& call);
void ring_barrier(Communicator& communicator, const Call& call);

}  // namespace vccl
