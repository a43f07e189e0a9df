// The line of the program that is running, for messages about a call.
#pragma once

#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {

/// Returns the innermost line of the program on the calling thread, or of a library other than torch and vccl
/// if there is none. Takes the interpreter's lock, and some tenths of a microsecond.
inline const PythonLine& program_line() {
  return interpreter().line();
}

}  // namespace vdev
