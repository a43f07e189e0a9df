// The stack of a call, for the flight recorder.
#pragma once

#include <string>

namespace vccl {

/// Returns the Python frames of the calling thread, the innermost first, each as a line
/// "function\tfile\tline". Takes the GIL for a moment if there is an interpreter. Call this only if stacks
/// were asked for: it takes some microseconds.
std::string call_stack();

/// Returns only the innermost of these lines that belongs to the program, and "" if there is none. Takes less
/// than a microsecond.
std::string call_line();

}  // namespace vccl
