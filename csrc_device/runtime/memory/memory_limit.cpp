#include "csrc_device/runtime/memory/memory_limit.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "base/control_groups.hpp"
#include "base/files.hpp"

namespace vdev {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Returns the number that the file begins with. Returns SIZE_MAX for "max", if there is no file, and if it
/// begins with no number. For "unlimited", version 1 writes a number near 2^63.
std::size_t number_in(const std::string& file) {
  const std::string text = base::first_line(file);
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : SIZE_MAX;
}

/// Calls `visit` with the folder of the group `path`, and with those of the groups above it, up to the root
/// of the hierarchy at `mount`. In a container, the root is often the container's own group, and `path` is
/// one that only the host can see.
void for_group_and_above(const std::string& mount, std::string path,
                         const std::function<void(const std::string& folder)>& visit) {
  while (true) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    visit(mount + path);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

/// Calls `visit` with every folder that may limit the memory of this process, and with whether it belongs to
/// version 2.
void for_every_group(const std::string& root,
                     const std::function<void(const std::string& folder, bool unified)>& visit) {
  const std::string mounts = root + "/sys/fs/cgroup";
  for (const base::ControlGroup& group : base::control_groups(root)) {
    if (group.unified()) {
      for (const auto& mount : {mounts, mounts + "/unified"})
        for_group_and_above(mount, group.path, [&](const auto& folder) { visit(folder, true); });
    } else if (group.has("memory")) {
      for_group_and_above(mounts + "/memory", group.path, [&](const auto& folder) { visit(folder, false); });
    }
  }
}

/// Returns the numbers behind two names in a file of lines "name number", and 0 for a name that is not there.
std::array<std::size_t, 2> entries_of(const std::string& path, std::array<std::string_view, 2> names) {
  std::array<std::size_t, 2> found{};
  std::size_t missing = names.size();
  std::ifstream file(path);
  for (std::string line; missing != 0 && std::getline(file, line);) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!line.starts_with(names[i])) continue;
      const std::size_t digits = line.find_first_not_of(' ', names[i].size());
      if (digits == std::string::npos || digits == names[i].size()) continue;  // a longer name
      std::from_chars(line.data() + digits, line.data() + line.size(), found[i]);
      --missing;
    }
  }
  return found;
}

/// Returns limit - used, where `limit` may be SIZE_MAX for none.
std::size_t rest_of(std::size_t limit, std::size_t used) {
  return limit == SIZE_MAX ? SIZE_MAX : limit - std::min(limit, used);
}

std::size_t sum_of(std::size_t a, std::size_t b) {
  return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

/// Returns what a group leaves: memory and swap, and what the system can take from the group's page cache. If
/// that is `enough`, the result may be too small, but not below it: reading a group's cache takes long.
std::size_t room_of_group(const std::string& folder, bool unified, std::size_t swap, std::size_t enough) {
  const auto file = [&](const char* name) { return number_in(folder + "/" + name); };
  const std::size_t limit = file(unified ? "memory.max" : "memory.limit_in_bytes");
  if (limit == SIZE_MAX) return SIZE_MAX;
  const std::size_t used = file(unified ? "memory.current" : "memory.usage_in_bytes");
  if (used == SIZE_MAX) return SIZE_MAX;
  std::size_t rest_with_swap = SIZE_MAX;  // of version 1, which limits memory and swap together
  if (!unified) {
    const std::size_t both = file("memory.memsw.usage_in_bytes");
    rest_with_swap = rest_of(file("memory.memsw.limit_in_bytes"), both == SIZE_MAX ? 0 : both);
  }
  const std::size_t rest = rest_of(limit, used);
  if (std::min(rest, rest_with_swap) >= enough) return enough;
  const auto [inactive, active] =
      unified ? entries_of(folder + "/memory.stat", {"inactive_file", "active_file"})
              : entries_of(folder + "/memory.stat", {"total_inactive_file", "total_active_file"});
  const std::size_t memory = sum_of(rest, inactive + active);
  if (!unified) return std::min(sum_of(memory, swap), sum_of(rest_with_swap, inactive + active));
  const std::size_t swapped = file("memory.swap.current");
  return sum_of(memory, std::min(swap, rest_of(file("memory.swap.max"), swapped == SIZE_MAX ? 0 : swapped)));
}

}  // namespace

std::size_t cgroup_memory_limit(const std::string& root) {
  std::size_t least = SIZE_MAX;
  for_every_group(root, [&](const auto& folder, bool unified) {
    least = std::min(least, number_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes")));
  });
  return least;
}

MachineRoom machine_room(const std::string& root) {
  constexpr std::size_t kKiB = 1024;
  const auto [available_kib, swap_kib] = entries_of(root + "/proc/meminfo", {"MemAvailable:", "SwapFree:"});
  const std::size_t available = available_kib * kKiB, swap = swap_kib * kKiB;
  MachineRoom room;
  if (available != 0) room = {sum_of(available, swap), "MemAvailable and SwapFree in /proc/meminfo"};
  for_every_group(root, [&](const auto& folder, bool unified) {
    const std::size_t left = room_of_group(folder, unified, swap, room.bytes);
    if (left < room.bytes) room = {left, folder + (unified ? "/memory.max" : "/memory.limit_in_bytes")};
  });
  return room;
}

std::size_t usable_memory() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES);
  const auto page = ::sysconf(_SC_PAGE_SIZE);
  const std::size_t ram = pages > 0 && page > 0
                              ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page)
                              : std::size_t{4} << 30;
  return std::min(ram, cgroup_memory_limit());
}

std::size_t default_capacity(std::size_t usable, int ranks) {
  const std::size_t share = usable / static_cast<std::size_t>(std::max(ranks, 1));
  const std::size_t wanted = std::clamp(share / 8, 512 * kMiB, 2048 * kMiB);
  return share - std::min(wanted, share / 2);
}

}  // namespace vdev
