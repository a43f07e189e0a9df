// Registers the answers to torch's questions about the accelerator.
#pragma once

namespace vdev {

/// Registers the hooks of the cards' device type. Call this once, when the module is loaded. Raises
/// RuntimeError if the cards are to pose as CUDA and torch was built with it.
void register_hooks();

/// Does what Python does when it loads the module, for programs without Python: calls the device "vdev" and
/// registers the hooks. Returns false, and does nothing, if there are hooks already or the cards pose as
/// CUDA.
bool name_device();

}  // namespace vdev
