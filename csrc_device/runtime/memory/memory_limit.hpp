// How much memory this process may use, what the machine has left of it, and which part of it a card has by
// default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vdev {

/// Returns the smallest memory limit, in bytes, of this process's control group and of the groups above it.
/// The groups may be of version 2, of version 1, or of both. Returns SIZE_MAX if there is no limit. Tests
/// pass `root`, which is put in front of every path that is read.
std::size_t cgroup_memory_limit(const std::string& root = "");

/// Says how much memory the system can still give before it ends a process (the OOM killer), in bytes, and
/// which limit that is. Both limits count swap, and page cache that the system can drop.
struct MachineRoom {
  std::size_t bytes = SIZE_MAX;
  std::string limit;  // "MemAvailable and SwapFree in /proc/meminfo", or the file of a control group's limit
};
/// Tests pass `root` as above.
MachineRoom machine_room(const std::string& root = "");

/// Returns the machine's RAM in bytes, or the control group's limit if that is less.
std::size_t usable_memory();

/// Returns the capacity of a card, in bytes, for one of `ranks` processes that share `usable` bytes equally.
/// An eighth of the process's share, but at least 512 MiB and at most 2 GiB, is left for the interpreter,
/// torch and CPU tensors. Never more than half of the share is left for these. So torch.OutOfMemoryError
/// comes before the system kills a process, as long as every process uses one card.
std::size_t default_capacity(std::size_t usable, int ranks);

}  // namespace vdev
