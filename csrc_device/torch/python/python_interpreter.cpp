#include "csrc_device/torch/python/python_interpreter.hpp"

#include <Python.h>
#include <frameobject.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <utility>

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

bool belongs_to_the_program(const std::string& file) {
  for (const char* library : {"/torch/", "/vccl/", "<frozen", "<string>"}) {
    if (file.find(library) != std::string::npos) return false;
  }
  return true;
}

void* release_lock() {
  return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void take_lock(void* state) {
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

PythonLine line_of_program() {
  if (!python_runs()) return {};
  const PyGILState_STATE gil = PyGILState_Ensure();
  PythonLine line;
  Owned<PyFrameObject> frame(PyThreadState_GetFrame(PyThreadState_Get()));
  while (frame && line.file.empty()) {
    const Owned<PyCodeObject> code(PyFrame_GetCode(frame.get()));
    std::string file = utf8(code->co_filename);
    if (belongs_to_the_program(file))
      line = {utf8(code->co_name), std::move(file), PyFrame_GetLineNumber(frame.get())};
    frame.reset(PyFrame_GetBack(frame.get()));
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
  set_interpreter({.release_lock = &release_lock,
                   .take_lock = &take_lock,
                   .line = &line_of_program,
                   .with_warnings = &with_python_warnings});
}

}  // namespace vdev
