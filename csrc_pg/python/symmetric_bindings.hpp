// Symmetric memory, for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

void init_symmetric_bindings(pybind11::module_& module);
