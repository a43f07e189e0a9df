// A rank's own window: the memory that it shows to its neighbours in the ring, and whether they can map it.
#pragma once

#include <cstddef>
#include <span>

#include "transport/shared/control_memory.hpp"

namespace vccl {

struct Window {
  std::span<std::byte> bytes;
  WindowKind kind = WindowKind::staged;
};

/// Returns the region among a rank's own `regions` that contains all of `bytes`, or null.
const Region* region_of(std::span<const Region> regions, std::span<const std::byte> bytes);
/// Returns a window: mapped if it lies in one of this rank's own `regions`, and staged otherwise.
Window window_in(std::span<const Region> regions, std::span<std::byte> bytes);

}  // namespace vccl
