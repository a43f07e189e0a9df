#include "csrc_device/runtime/allocator/failing_allocations.hpp"

#include <atomic>

#include "csrc_device/runtime/fail_allocation.hpp"

namespace vdev {
namespace {

// Relaxed: nothing else is handed over with it.
std::atomic<int> failing{0};

}  // namespace

void fail_next_allocation() noexcept {
  failing.fetch_add(1, std::memory_order_relaxed);
}

bool take_failing_allocation() noexcept {
  int left = failing.load(std::memory_order_relaxed);
  while (left > 0)
    if (failing.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) return true;
  return false;
}

}  // namespace vdev
