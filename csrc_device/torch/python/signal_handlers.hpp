// Runs Python's signal handlers while the main thread waits.
#pragma once

namespace vdev {

/// Makes an exception that a signal handler raises, such as Ctrl-C's KeyboardInterrupt, end the waits of the
/// main thread. The wait then raises the exception. Further calls do nothing.
void let_signals_interrupt();

}  // namespace vdev
