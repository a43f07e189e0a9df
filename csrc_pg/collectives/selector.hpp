// Chooses the algorithm of a call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/selection/tuned_range.hpp"

namespace vccl {

/// The algorithms for one call. Whether peers can address a rank's memory is known only once everybody has
/// announced where it lies; until then both are possible.
struct Choice {
  const Algorithm* first;
  const Algorithm* otherwise;  // if `first` needs mapped memory: for other memory; else null
  Payload payload;             // the payload that `first` sends along

  /// Returns a number that is the same on every rank which chooses alike.
  std::uint32_t number() const;
};

/// Returns the first algorithms that can do the call on this communicator: of the algorithms that VCCL_ALGO
/// asks for, then of the tuned table from the call's size on, then of all. The result is the same on every
/// rank, since it depends only on values that the ranks share. Throws Error(invalid) for a VCCL_ALGO that
/// cannot be understood, and Error(unsupported) naming the call.
Choice choose_algorithms(Communicator& communicator, const Call& call);

/// Throws Error(invalid) for a VCCL_ALGO that cannot be understood, as every call would.
void check_algorithm_choice(const std::string& choice);

/// Returns the families that can do a collective among `size` ranks of one host, with equal chunks of float32
/// elements and `bytes` bytes in the longest buffer, in the order of algorithms(). Returns none for a name
/// that is unknown.
std::vector<std::string> capable_families(std::string_view collective, std::size_t bytes, int size,
                                          MemoryKind memory);

/// Returns the table that `vccl.bench tune` has measured.
std::span<const TunedRange> tuned_table() noexcept;

}  // namespace vccl
