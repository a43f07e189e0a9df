// The allocations that are to fail on purpose (csrc_device/runtime/fail_allocation.hpp).
#pragma once

namespace vdev {

/// Returns whether an allocation is to fail, and counts it.
bool take_failing_allocation() noexcept;

}  // namespace vdev
