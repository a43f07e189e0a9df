// Kernels of which nobody knows what memory they use.
#pragma once

#include <functional>
#include <string>

namespace vdev {

/// Runs `kernel` in the order of the calling thread's current stream on `card`, as vdev::launch_kernel()
/// does (include/vccl/device.hpp). It is given up behind every failure of the stream, and what follows a
/// kernel that has failed is given up, too. The race detector sees nothing of it. The caller must not hold
/// the interpreter's lock if the kernel may run before the call returns (VDEV_LAUNCH).
void launch_unknown_kernel(std::string name, int card, std::function<void()> kernel);

}  // namespace vdev
