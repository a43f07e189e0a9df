#include "csrc_device/runtime/memory/memory_limit.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>

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

/// Returns the smallest limit of the group `path` and of the groups above it, up to the root of the hierarchy
/// at `mount`. In a container, the root is often the container's own group, and `path` is one that only the
/// host can see.
std::size_t least_limit(const std::string& mount, std::string path, const char* file) {
  std::size_t least = SIZE_MAX;
  while (true) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    least = std::min(least, number_in(mount + path + file));
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::size_t cgroup_memory_limit(const std::string& root) {
  const std::string mounts = root + "/sys/fs/cgroup";
  std::size_t least = SIZE_MAX;
  for (const base::ControlGroup& group : base::control_groups(root)) {
    if (group.unified()) {
      least = std::min({least, least_limit(mounts, group.path, "/memory.max"),
                        least_limit(mounts + "/unified", group.path, "/memory.max")});
    } else if (group.has("memory")) {
      least = std::min(least, least_limit(mounts + "/memory", group.path, "/memory.limit_in_bytes"));
    }
  }
  return least;
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
