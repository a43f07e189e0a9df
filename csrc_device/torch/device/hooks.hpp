// Registers the answers to torch's questions about the accelerator.
#pragma once

namespace vdev {

/// Registers the hooks of the cards' device type, and their settings of allocators. Call this once, when the
/// module is loaded. Throws the first error of the static initialisers' registrations, and if another
/// library has registered that device type. Raises RuntimeError if the cards are to pose as CUDA and torch
/// was built with it.
void register_hooks();

/// Sets the device up for programs without Python, as Python does when it loads the module: calls it "vdev"
/// and registers the hooks. Returns false, and does nothing, if there are hooks already or the cards pose as
/// CUDA.
bool name_device();

}  // namespace vdev
