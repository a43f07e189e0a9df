#include "csrc_device/torch/checks/poisoned_cards.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include <c10/util/Exception.h>

#include "base/text.hpp"
#include "csrc_device/runtime/environment.hpp"
#include "csrc_device/torch/errors.hpp"

namespace vdev {
namespace {

struct Poisoned {
  // Relaxed, because the reasons are read under the lock. A thread that sees the flag late uses the card once
  // more, as it would have a moment before.
  std::atomic<bool> any{false};
  std::mutex mutex;
  std::array<std::string, kMostCards> reasons;
};

// Leaked, because cards are used until the process ends.
Poisoned& poisoned() {
  static auto& one = *new Poisoned;
  return one;
}

}  // namespace

void poison(int card, const std::string& reason) {
  Poisoned& all = poisoned();
  std::lock_guard lock(all.mutex);
  auto& known = all.reasons[static_cast<std::size_t>(card)];
  if (known.empty()) known = reason;
  all.any.store(true, std::memory_order_relaxed);
}

void check_usable(int card) {
  Poisoned& all = poisoned();
  if (!all.any.load(std::memory_order_relaxed)) [[likely]] {
    return;
  }
  std::lock_guard lock(all.mutex);
  const auto& reason = all.reasons[static_cast<std::size_t>(card)];
  if (reason.empty()) return;
  constexpr std::int32_t kAssert = 710;  // cudaErrorAssert
  raise_accelerator_error(
      kAssert,
      base::text(device_title(), " error: device-side assert triggered on card ", card, ": ", reason,
                 ". With VDEV_STRICT=1 this is final, as on a GPU: the card can be used again in a new "
                 "process."));
}

}  // namespace vdev
