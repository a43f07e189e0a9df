// Reads the VDEV_* variables and LOCAL_WORLD_SIZE. docs/environment.md names the Python files that read some.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "csrc_device/runtime/cards/profile.hpp"

namespace vdev {

inline constexpr int kMostCards = 64;

/// Says which device type of torch the cards are.
enum class Pose { vdev, cuda };

/// Returns the value of VDEV_POSE, read once: "cuda" means cuda, anything else vdev. Never throws, because
/// static initialisers call it; environment() throws for a value that is not allowed.
Pose pose() noexcept;
/// Returns the name of the cards' device type as torch writes it: "vdev" or "cuda".
const char* device_name() noexcept;
/// Returns the name of the device in the texts of errors: "vdev" or "CUDA". Programs look for "CUDA out of
/// memory".
const char* device_title() noexcept;

/// Holds the values of the variables, which are read once, at first use. A bad value throws InvalidArgument,
/// which names the variable, the value and what is allowed.
struct Environment {
  Pose pose = Pose::vdev;    // VDEV_POSE: "cuda", or unset
  int device_count = 8;      // VDEV_DEVICE_COUNT: the number of cards of the machine, 1 to 64
  std::vector<int> visible;  // VDEV_VISIBLE_DEVICES, as CUDA's: "2,0". If it is not set, all cards are
                             // visible. The first bad entry ends the list, and a repeated entry empties it.
                             // Cards that pose as CUDA read CUDA_VISIBLE_DEVICES where it is not set.
  int machine_ranks = 1;     // VDEV_MACHINE_RANKS, else LOCAL_WORLD_SIZE: the number of processes that share
                             // the memory
  const Profile* profile = nullptr;  // VDEV_PROFILE: the model of a GPU whose figures the cards show, or null
  std::size_t memory = 0;  // VDEV_MEMORY: the bytes of a card, "512M" or "1.5G", 16M to 16T. The default is
                           // the profile's memory, or a part of this process's share of the machine's memory
                           // (memory_limit.hpp).
  std::size_t card_memory = 0;  // the bytes of a card that all its processes may have together: `memory`, or
                                // the default for one rank if neither VDEV_MEMORY nor a profile says more
  std::string host_id;  // VDEV_HOSTID and VCCL_HOSTID: processes with different ids have cards of their own
  bool launch_async = true;   // VDEV_LAUNCH: async, or blocking, which runs every operator at its call
  bool launch_trace = false;  // VDEV_LAUNCH_TRACE: 1 makes errors of operators name the line that called them
  bool strict = false;  // VDEV_STRICT: 1 makes an error that a kernel finds in elements final for its card
  bool launch_blocking = false;  // VDEV_LAUNCH_BLOCKING: 1 makes every enqueue synchronise. Cards that pose
                                 // as CUDA read CUDA_LAUNCH_BLOCKING where it is not set.
  int profiler_activities = 500'000;  // VDEV_PROFILER_ACTIVITIES: the most runs in one trace, 1 to 100
                                      // million (activity.hpp)
  std::string first_use_file;  // VDEV_FIRST_USE_FILE: a file that is made when memory of a card is first
                               // taken; empty for none
};

const Environment& environment();

/// Returns whether environment() has read the variables, which it does once in a process.
bool environment_was_read() noexcept;

/// Returns the value of a variable, or null when it is not set.
using VariableLookup = std::function<const char*(const char* name)>;
/// Does what environment() does, with variables from any source.
Environment parse_environment(const VariableLookup& lookup);

}  // namespace vdev
