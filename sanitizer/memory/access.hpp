// What the detector is told of accesses, and what it tells of races.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sanitizer/memory/clock.hpp"
#include "sanitizer/memory/footprint.hpp"

namespace sanitizer {

/// Names a place in the program, by a number that the caller gives.
using Site = std::uint32_t;

/// Describes one access. `block` is the first byte of the allocation that the bytes lie in.
struct Access {
  const void* block = nullptr;
  Footprint memory;
  bool writes = false;
  std::uint32_t number = 0;  // by which the caller knows the tensor
  bool reads_first = false;  // before it writes, as an operator that works in place
};

/// Says who did an access, and when.
struct Action {
  Lane lane = 0;
  Time time = 0;
  Site site = 0;
  bool writes = false;
};

/// Two accesses to a common byte, of which at least one writes, and between which there is no order.
struct Race {
  Action first, second;      // in the order in which the detector was told of them
  std::uint32_t number = 0;  // Access::number of the second
  Site allocated = 0;        // where the memory of the second was allocated; 0 if that is not known
  /// Where the memory was freed after the first access, if it was and then given out again; 0 otherwise.
  Site freed = 0;
};

}  // namespace sanitizer
