// The faults of a plan in Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace vccl {

void init_faults_bindings(pybind11::module_& module);

}  // namespace vccl
