// A row of the tuned table (tuned_table.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// What a communicator's calls lie in: on one host, memory that every rank has handed over to the others, or
/// other memory, which has to be staged.
enum class MemoryKind : std::uint8_t { mapped, staged };

inline constexpr std::size_t kAnyLength = std::numeric_limits<std::size_t>::max();
inline constexpr int kAnyRanks = std::numeric_limits<int>::max();

/// One algorithm's range. Rows for the same collective, memory and ranks follow each other with ascending
/// `max_bytes`, each beginning where the one before ended; the last one ends at kAnyLength.
struct TunedRange {
  Collective collective;
  MemoryKind memory;
  int min_ranks, max_ranks;  // both included
  std::size_t max_bytes;     // of the longest buffer, included
  const char* algorithm;     // its family
};

}  // namespace vccl
