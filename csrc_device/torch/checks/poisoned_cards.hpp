// Cards that can no longer be used, because a kernel has failed on them (VDEV_STRICT=1).
#pragma once

#include <string>

namespace vdev {

/// Makes every later use of the card raise RuntimeError with `reason`. The first reason counts. Thread-safe.
void poison(int card, const std::string& reason);

/// Raises RuntimeError if the card has been poisoned. Thread-safe.
void check_usable(int card);

}  // namespace vdev
