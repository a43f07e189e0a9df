// What vccl/vdev/interprocess_events.py uses. An event is given by its event_id, which is the address of what
// stands behind it.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/device/event_state.hpp"
#include "csrc_device/torch/errors.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

EventState& state_at(std::uintptr_t event_id) {
  TORCH_CHECK(event_id != 0, "The event was not recorded.");
  return *reinterpret_cast<EventState*>(event_id);
}

}  // namespace
}  // namespace vdev

void init_event_bindings(py::module_& m) {
  m.def(
      "_share_event",
      [](std::uintptr_t event_id, int index, std::int64_t stream) {
        vdev::state_at(event_id).share(*vdev::card(index).stream(stream));
      },
      "Lets other processes see an event that was last recorded on a stream, given by card and id.");
  m.def(
      "_event_handle",
      [](std::uintptr_t event_id) {
        const auto shared = vdev::state_at(event_id).shared();
        TORCH_CHECK(shared, "The event has no handle, because its record has failed. Record it again.");
        return py::bytes(shared->handle());
      },
      "Returns the bytes by which another process opens the event.");
  m.def(
      "_open_event",
      [](std::uintptr_t event_id, const py::bytes& handle) {
        vdev::state_at(event_id).attach(vdev::ProcessEvent::open(handle));
      },
      "Makes an event that of another process, which _event_handle() has described.");
}
