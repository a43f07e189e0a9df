// The threads on which torch runs the backward of each card, at the interpreter's exit.
#pragma once

#include <chrono>

namespace vdev {

/// Waits until autograd's device threads have let go of every backward that has ended, at most `patience`.
/// Call it without the interpreter's lock, before the interpreter is finalised.
///
/// torch.autograd stashes a Python object for each backward, and a device thread may be its last owner, a
/// moment after backward() has returned. If the interpreter is being finalised by then, taking its lock ends
/// the thread by unwinding it, and the process aborts ("terminate called without an active exception"). On
/// one thread per device with the CPU's speed, a script whose last act is a backward would lose that race
/// nearly always.
void settle_autograd_threads(std::chrono::milliseconds patience);

}  // namespace vdev
