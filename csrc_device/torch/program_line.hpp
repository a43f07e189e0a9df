// The line of the program that is running, for messages about a call.
#pragma once

#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {

/// Returns the innermost line of Python on the calling thread that belongs neither to torch nor to vccl.
/// Takes the interpreter's lock, and about half a microsecond.
inline PythonLine program_line() {
  return interpreter().line();
}

}  // namespace vdev
