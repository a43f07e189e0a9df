// The flight recorder of this process.
#pragma once

#include "recorder/flight_recorder.hpp"
#include "transport/variables.hpp"

namespace vccl {

/// Returns the recorder of this process, which lives until the process ends. Its first call reads the
/// variables, and throws Error(invalid) for a value that is not allowed. If the system gives no memory, the
/// recorder records nothing.
FlightRecorder& own_flight_recorder();
/// Returns the variables that the call has read.
const RecorderVariables& own_recorder_variables();

}  // namespace vccl
