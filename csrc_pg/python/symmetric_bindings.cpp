#include "csrc_pg/python/symmetric_bindings.hpp"

#include <memory>

#include <c10/core/Allocator.h>

#include "csrc_device/torch/device_type.hpp"
#include "csrc_pg/symmetric/allocations.hpp"

namespace py = pybind11;

void init_symmetric_bindings(py::module_& module) {
  // torch hands out the allocator of its memory pools as this type, which builds without CUDA do not bind.
  if (py::detail::get_type_info(typeid(c10::Allocator)) == nullptr)
    py::class_<c10::Allocator, std::shared_ptr<c10::Allocator>>(
        module, "_Allocator", "An allocator of torch, such as the one for pools of symmetric memory.");
  module.def(
      "_is_cards_allocator",
      [](const py::object& allocator) {
        return py::isinstance<c10::Allocator>(allocator) &&
               allocator.cast<c10::Allocator*>() == c10::GetAllocator(vdev::device_type());
      },
      py::arg("allocator"), "Returns whether an object is the allocator of the cards.");
  module.def(
      "_add_symmetric_pool",
      [](int card, vdev::PoolNumber pool) { vccl::symmetric::allocations().add_pool(card, pool); },
      py::arg("card"), py::arg("pool"), "Makes the memory of a private pool symmetric.");
}
