// The type of the rows of the tuned table (tuned_table.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "csrc_pg/collectives/call.hpp"

namespace vccl {

/// Says in which memory a communicator's calls lie: in memory that every rank has handed over to the others
/// of its host, or in other memory, which has to be staged. Calls across several hosts have rows of their
/// own.
enum class MemoryKind : std::uint8_t { mapped, staged, mapped_across, staged_across };
inline constexpr std::size_t kMemoryKinds = 4;

inline constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();
inline constexpr int kAnyRanks = std::numeric_limits<int>::max();

/// Names the algorithm for a range of lengths and numbers of ranks. Rows for the same collective, memory and
/// ranks follow each other with ascending `max_bytes`. Each begins where the one before ended, and the last
/// one ends at kAnyLength.
struct TunedRange {
  Collective collective;
  MemoryKind memory;
  int min_ranks, max_ranks;  // both included
  std::size_t max_bytes;     // of the longest buffer, included
  const char* algorithm;     // the name of its family
};

}  // namespace vccl
