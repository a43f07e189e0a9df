// What the faults of a plan need of other rooms (faults/faults.hpp).
#pragma once

#include <string>

namespace vccl {

/// Raises a Python exception of the type with this name.
using RaiseFault = void (*)(const std::string& type, const std::string& text);
/// Gives the faults what they need. Call this once, before a plan is switched on.
void prepare_faults(RaiseFault raise);

}  // namespace vccl
