// What vccl/cuda needs of C++ for cards that pose as CUDA, because torch decided it when it was compiled
// without CUDA.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_new.h>

#include <unordered_map>

#include "csrc_device/torch/allocator.hpp"
#include "csrc_device/torch/device_type.hpp"
#include "csrc_device/torch/memory/registered_memory.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

// torch.Event.elapsed_time refuses objects of derived classes, such as torch.cuda.Event.
double elapsed_time(const py::handle& start, const py::handle& end) {
  TORCH_CHECK_TYPE(THPEvent_Check(start.ptr()) && THPEvent_Check(end.ptr()),
                   "elapsed_time() takes an event of the same device.");
  const auto& first = reinterpret_cast<THPEvent*>(start.ptr())->event;
  const auto& last = reinterpret_cast<THPEvent*>(end.ptr())->event;
  py::gil_scoped_release no_gil;
  return first.elapsedTime(last);
}

/// Says what a legacy type makes: torch.cuda.FloatTensor dense tensors, torch.cuda.sparse.FloatTensor sparse
/// ones.
struct LegacyType {
  c10::DispatchKey key;
  at::ScalarType dtype;
};

std::unordered_map<PyTypeObject*, LegacyType>& legacy_types() {
  static auto& types = *new std::unordered_map<PyTypeObject*, LegacyType>;
  return types;
}

// Stands for torch's constructor of a legacy type, which raises in a build without CUDA.
PyObject* new_legacy_tensor(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  py::module_::import("torch.cuda").attr("_lazy_init")();
  const auto [key, dtype] = legacy_types().at(type);
  return THPVariable_Wrap(torch::utils::legacy_tensor_ctor(key, dtype, args, kwargs));
  END_HANDLE_TH_ERRORS
}

void make_legacy_type(const py::handle& type, const py::object& dtype, bool sparse) {
  auto* type_object = reinterpret_cast<PyTypeObject*>(type.ptr());
  legacy_types()[type_object] = {sparse ? sparse_key() : dense_key(), dtype.cast<at::ScalarType>()};
  type_object->tp_new = &new_legacy_tensor;
}

}  // namespace
}  // namespace vdev

void init_pose_bindings(py::module_& m) {
  m.def(
      "_register_host_memory",
      [](std::uintptr_t data, std::size_t size) {
        at::globalContext().lazyInitDevice(vdev::device_type());  // torch finds nothing pinned before
        return static_cast<int>(vdev::register_host_memory(reinterpret_cast<const void*>(data), size));
      },
      py::arg("data"), py::arg("size"), "Makes memory of the host count as pinned. Returns CUDA's error.");
  m.def(
      "_unregister_host_memory",
      [](std::uintptr_t data) {
        return static_cast<int>(vdev::unregister_host_memory(reinterpret_cast<const void*>(data)));
      },
      py::arg("data"), "Ends that. Returns CUDA's error.");
  m.def("_device_name", &vdev::device_name, "Returns the type of the cards' torch.device: vdev or cuda.");
  m.def("_elapsed_time", &vdev::elapsed_time, "Returns the milliseconds between two events.");
  m.def("_resize_storage", &vdev::resize_storage);
  m.def("_make_legacy_type", &vdev::make_legacy_type,
        "Lets a type of torch.cuda, such as FloatTensor, make tensors on cards.");
}
