// The one place that reads the VDEV_* variables and LOCAL_WORLD_SIZE (docs/environment.md).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace vdev {

inline constexpr int kMostCards = 64;

/// Holds the values of the variables, which are read once, at first use. A bad value throws InvalidArgument,
/// which names the variable, the value and what is allowed.
struct Environment {
  int device_count = 8;      // VDEV_DEVICE_COUNT: the number of cards of the machine, 1 to 64
  std::vector<int> visible;  // VDEV_VISIBLE_DEVICES, as CUDA's: "2,0". If it is not set, all cards are
                             // visible. The first bad entry ends the list, and a repeated entry empties it.
  int machine_ranks = 1;     // VDEV_MACHINE_RANKS, else LOCAL_WORLD_SIZE: the number of processes that share
                             // the memory
  std::size_t memory = 0;    // VDEV_MEMORY: the bytes of a card, "512M" or "1.5G", 16M to 16T. The default is
                             // a part of this process's share of the machine's memory (memory_limit.hpp).
  bool launch_blocking = false;  // VDEV_LAUNCH_BLOCKING: 1 makes every enqueue synchronise
  std::string first_use_file;    // VDEV_FIRST_USE_FILE: a file that is made when memory of a card is first
                                 // taken; empty for none
};

const Environment& environment();

/// Returns the value of a variable, or null when it is not set.
using VariableLookup = std::function<const char*(const char* name)>;
/// Does what environment() does, with variables from any source.
Environment parse_environment(const VariableLookup& lookup);

}  // namespace vdev
