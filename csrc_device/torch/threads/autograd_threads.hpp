// The threads on which torch runs the backward of each card, and how they end at the interpreter's
// exit.
#pragma once

#include <chrono>

namespace vdev {

/// Blocks, for at most `patience`, until autograd's device threads have released every backward that has
/// ended. Call this without the GIL, before the interpreter is finalised.
///
/// torch.autograd keeps a Python object for each backward. A device thread may be the object's last owner for
/// a moment after backward() has returned. If that thread takes the GIL while the interpreter is being
/// finalised, Python ends the thread by unwinding it, and the process aborts ("terminate called without an
/// active exception"). A script whose last act is a backward would nearly always run into this.
void settle_autograd_threads(std::chrono::milliseconds patience);

}  // namespace vdev
