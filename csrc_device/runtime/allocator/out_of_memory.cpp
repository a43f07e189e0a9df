#include "csrc_device/runtime/allocator/out_of_memory.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/text.hpp"
#include "csrc_device/runtime/blocks/block.hpp"
#include "csrc_device/runtime/environment.hpp"

namespace vdev {
namespace {

std::string in_units(std::size_t bytes) {
  char text[48];
  if (bytes < 1024) {
    std::snprintf(text, sizeof text, "%zu bytes", bytes);
  } else if (bytes < kMiB) {
    std::snprintf(text, sizeof text, "%.2f KiB", static_cast<double>(bytes) / 1024.0);
  } else if (bytes < 1024 * kMiB) {
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB",
                  static_cast<double>(bytes) / (1024.0 * static_cast<double>(kMiB)));
  }
  return text;
}

/// Returns sentences about the processes other than this one.
std::string other_users(const std::vector<CardUser>& users) {
  constexpr int kMost = 8;
  std::string text;
  int others = 0;
  for (const CardUser& user : users) {
    if (user.self || ++others > kMost) continue;
    text += base::text("Process ", user.pid, user.foreign ? " of another pid namespace (" : " (", user.name,
                       ") has ", in_units(user.bytes), " memory in use. ");
  }
  if (others > kMost) text += base::text(others - kMost, " more processes use the card. ");
  if (others != 0)
    text += base::text("torch.", device_name(),
                       ".list_gpu_processes() lists them, and "
                       "processes with different VDEV_HOSTID have cards of their own. ");
  return text;
}

}  // namespace

std::string out_of_memory_text(std::size_t bytes, int card, std::size_t capacity, const Segments& segments,
                               const AllocatorStats& stats) {
  const auto allocated = static_cast<std::size_t>(stats.allocated_bytes.current);
  const auto scratch = static_cast<std::size_t>(stats.scratch_bytes.current);
  const std::size_t reserved = segments.reserved();
  std::string text =
      base::text(device_title(), " out of memory. Tried to allocate ", in_units(bytes), ". Card ", card,
                 " has a total capacity of ", in_units(capacity), " of which ", in_units(segments.left()),
                 " is free. ", other_users(segments.account().users()));
  if (segments.limit() < capacity) text += base::text(in_units(segments.limit()), " allowed; ");
  text += base::text("Of the allocated memory ", in_units(allocated), " is allocated by PyTorch, ",
                     scratch != 0 ? base::text(in_units(scratch), " by kernels that are running, ") : "",
                     "and ", in_units(reserved - std::min(allocated + scratch, reserved)),
                     " is reserved by PyTorch but unallocated. Use a smaller batch, free tensors that are "
                     "kept alive, or give the cards more capacity with VDEV_MEMORY.");
  return text;
}

}  // namespace vdev
