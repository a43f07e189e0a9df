// The one compiled module, vccl._C.
#include <torch/csrc/utils/pybind.h>

#include "csrc_device/torch/device/hooks.hpp"
#include "csrc_device/torch/python/python_interpreter.hpp"
#include "csrc_device/torch/torch_version.hpp"

void init_device_bindings(pybind11::module_& module);
void init_event_bindings(pybind11::module_& module);
void init_graph_bindings(pybind11::module_& module);
void init_history_bindings(pybind11::module_& module);
void init_pool_bindings(pybind11::module_& module);
void init_pose_bindings(pybind11::module_& module);
void init_process_group_bindings(pybind11::module_& module);
void init_race_bindings(pybind11::module_& module);

PYBIND11_MODULE(_C, module) {
  module.attr("torch_version") = vdev::kTorchVersion;
#ifdef __clang__
  module.attr("compiler") = __VERSION__;  // which has the name of Clang
#else
  module.attr("compiler") = "GCC " __VERSION__;
#endif
  vdev::use_python_interpreter();
  vdev::register_hooks();
  init_device_bindings(module);
  init_event_bindings(module);
  init_graph_bindings(module);
  init_history_bindings(module);
  init_pool_bindings(module);
  init_pose_bindings(module);
  init_process_group_bindings(module);
  init_race_bindings(module);
}
