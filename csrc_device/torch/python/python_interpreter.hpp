// Lets the library use the Python interpreter of the process.
#pragma once

namespace vdev {

/// Puts Python's functions into interpreter(). Call this once, when the module is loaded.
void use_python_interpreter();

/// Returns whether the interpreter runs, and is not about to end.
bool python_runs();

}  // namespace vdev
