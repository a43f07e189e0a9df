#include "csrc_device/torch/python/signal_handlers.hpp"

#include <Python.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc_device/runtime/interruption.hpp"
#include "csrc_device/torch/python/python_interpreter.hpp"

namespace py = pybind11;

namespace vdev {
namespace {

// Runs the pending signal handlers. Python runs them between two instructions of its main thread, which does
// not come to one while it waits here.
Interruption run_signal_handlers() {
  if (!python_runs()) return {};
  py::gil_scoped_acquire gil;
  // If an exception is already under way, this thread is in a destructor and must not report another one.
  if (PyErr_Occurred() != nullptr || PyErr_CheckSignals() == 0) return {};
  Interruption interruption;
  try {
    throw py::error_already_set();  // takes the exception that the handler has raised
  } catch (py::error_already_set& error) {
    interruption.name = py::str(error.type().attr("__name__"));
    interruption.error = std::current_exception();
  }
  // Python calls this soon on the main thread, for an interruption that no wait could raise, such as a
  // destructor's.
  const auto raise_later = [](void*) {
    const auto error = take_interruption();
    if (!error) return 0;
    try {
      std::rethrow_exception(error);
    } catch (py::error_already_set& raised) {
      raised.restore();
    }
    return -1;
  };
  Py_AddPendingCall(raise_later, nullptr);
  return interruption;
}

}  // namespace

void let_signals_interrupt() {
  set_interruption_source(&run_signal_handlers);
}

}  // namespace vdev
