#include "csrc_device/torch/memory/registered_memory.hpp"

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

namespace vdev {
namespace {

struct Ranges {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> sizes;  // by address; guarded by mutex
  std::atomic<bool> any{false};                 // so that copies need no lock where nothing is registered

  // Returns whether a byte of the range is registered. The caller holds the mutex.
  bool meets(std::uintptr_t begin, std::size_t size) const {
    const auto next = sizes.lower_bound(begin + size);
    if (next == sizes.begin()) return false;
    const auto before = std::prev(next);
    return before->first + before->second > begin;
  }
};

Ranges& ranges() {
  static auto& all = *new Ranges;  // never destroyed: copies may come during static destruction
  return all;
}

}  // namespace

Registered register_host_memory(const void* data, std::size_t size) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (begin == 0 || size == 0 || begin + size < begin) return Registered::invalid;
  auto& all = ranges();
  const std::lock_guard lock(all.mutex);
  if (all.meets(begin, size)) return Registered::already;
  all.sizes.emplace(begin, size);
  all.any.store(true, std::memory_order_release);
  return Registered::done;
}

Registered unregister_host_memory(const void* data) {
  auto& all = ranges();
  const std::lock_guard lock(all.mutex);
  if (all.sizes.erase(reinterpret_cast<std::uintptr_t>(data)) == 0) return Registered::never;
  all.any.store(!all.sizes.empty(), std::memory_order_release);
  return Registered::done;
}

bool is_registered(const void* data) {
  auto& all = ranges();
  if (!all.any.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(all.mutex);
  return all.meets(reinterpret_cast<std::uintptr_t>(data), 1);
}

}  // namespace vdev
