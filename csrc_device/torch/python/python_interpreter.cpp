#include "csrc_device/torch/python/python_interpreter.hpp"

#include <Python.h>
#include <frameobject.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <utility>

#include "base/program_files.hpp"
#include "base/schedule.hpp"
#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {
namespace {

struct Decref {
  void operator()(void* object) const { Py_XDECREF(static_cast<PyObject*>(object)); }
};
template <class Object>
using Owned = std::unique_ptr<Object, Decref>;

std::string utf8(PyObject* text) {
  const char* characters = PyUnicode_AsUTF8(text);
  if (characters == nullptr) PyErr_Clear();
  return characters == nullptr ? "?" : characters;
}

// The frames of torch and vccl, and those between two functions: torch wraps its deprecated functions by
// typing_extensions, and Python 3.13 by warnings.
bool tells_nothing(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.find("/vccl/") != std::string::npos ||
         file.ends_with("/typing_extensions.py") || file.ends_with("/warnings.py") ||
         file.ends_with("/contextlib.py") || file.ends_with("/functools.py");
}

void* release_lock() {
  return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void take_lock(void* state) {
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

// The caller holds the lock.
PythonLine line_of(PyThreadState* thread) {
  PythonLine line, of_library;
  Owned<PyFrameObject> frame(PyThreadState_GetFrame(thread));
  while (frame && line.file.empty()) {
    const Owned<PyCodeObject> code(PyFrame_GetCode(frame.get()));
    const std::string file = utf8(code->co_filename);
    const bool is_of_program = base::is_of_program(file);
    PythonLine& found = is_of_program ? line : of_library;
    if (is_of_program || (of_library.file.empty() && !tells_nothing(file)))
      found = {utf8(code->co_name), file, PyFrame_GetLineNumber(frame.get())};
    frame.reset(PyFrame_GetBack(frame.get()));
  }
  return line.file.empty() ? of_library : line;
}

PythonLine line_of_program() {
  if (!python_runs()) return {};
  const PyGILState_STATE gil = PyGILState_Ensure();
  auto line = line_of(PyThreadState_Get());
  PyGILState_Release(gil);
  return line;
}

// The thread that has loaded the module. It keeps its number in a process that it forks.
unsigned long main_thread = 0;

PythonLine line_of_main_thread() {
  if (!python_runs()) return {};
  const PyGILState_STATE gil = PyGILState_Ensure();
  PythonLine line;
  for (auto* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    if (thread->thread_id == main_thread) line = line_of(thread);
  }
  PyGILState_Release(gil);
  return line;
}

void with_python_warnings(const std::function<void()>& function) {
  torch::PyWarningHandler handler;
  function();
}

}  // namespace

bool python_runs() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

void use_python_interpreter() {
  main_thread = PyThread_get_thread_ident();
  set_interpreter({.release_lock = &release_lock,
                   .take_lock = &take_lock,
                   .line = &line_of_program,
                   .line_of_main_thread = &line_of_main_thread,
                   .with_warnings = &with_python_warnings});
  base::schedule::set_interpreter_lock(&release_lock, &take_lock,
                                       [] { return Py_IsInitialized() && PyGILState_Check(); });
}

}  // namespace vdev
