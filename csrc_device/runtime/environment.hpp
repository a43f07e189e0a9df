// Every VDEV_* variable, read here and nowhere else (docs/environment.md).
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace vdev {

inline constexpr int kMostCards = 64;

/// Read once, at first use. Bad values throw InvalidArgument naming the variable, the value and what is
/// allowed.
struct Environment {
  int device_count = 8;      // VDEV_DEVICE_COUNT: cards of the machine, 1..64
  std::vector<int> visible;  // VDEV_VISIBLE_DEVICES: as CUDA's, "2,0"; unset: all; first bad entry ends the
                             // list, a repeated one empties it
  std::size_t memory = 0;    // VDEV_MEMORY: bytes a card, "512M", "1.5G", 16M..16T; default the machine's RAM
  bool launch_blocking = false;  // VDEV_LAUNCH_BLOCKING: 1 makes every enqueue synchronise
};

const Environment& environment();

/// The value of a variable, or null when it is not set.
using VariableLookup = std::function<const char*(const char* name)>;
/// What environment() does, from any source of variables.
Environment parse_environment(const VariableLookup& lookup);

}  // namespace vdev
