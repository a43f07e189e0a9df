// What Python asks about the jobs of this user: vccl._C._diagnose().
#pragma once

#include <pybind11/pybind11.h>

namespace vccl {

void init_diagnosis_bindings(pybind11::module_& module);

}  // namespace vccl
