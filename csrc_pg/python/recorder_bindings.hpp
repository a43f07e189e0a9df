// The flight recorder in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace vccl {

void init_recorder_bindings(pybind11::module_& module);

}  // namespace vccl
