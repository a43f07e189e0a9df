// The stack of a call, for the flight recorder.
#pragma once

#include <cstdint>
#include <string>

#include "recorder/flight_recorder.hpp"

namespace vccl {

/// Returns the Python frames of the calling thread, the innermost first, each as a line
/// "function\tfile\tline". Takes the GIL for a moment if there is an interpreter. Call this only if stacks
/// were asked for: it takes some microseconds. With `cpp`, the frames of C++ are in their places between
/// them, with their source where a library has debug symbols. Then it takes about 0.1 ms, and more at the
/// first call.
std::string call_stack(bool cpp);

/// Returns the number in the recorder of the line of the program that calls. Returns 0 if there is none.
/// Takes some tenths of a microsecond.
std::uint16_t call_line(FlightRecorder& recorder);

}  // namespace vccl
