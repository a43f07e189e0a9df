#include "csrc_device/torch/python/python_interpreter.hpp"

#include <Python.h>
#include <torch/csrc/Exceptions.h>

#include <memory>
#include <utility>

#include "base/schedule.hpp"
#include "csrc_device/torch/python/code_facts.hpp"
#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {
namespace {

struct Decref {
  void operator()(void* object) const { Py_XDECREF(static_cast<PyObject*>(object)); }
};
template <class Object>
using Owned = std::unique_ptr<Object, Decref>;

void* release_lock() {
  return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void take_lock(void* state) {
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

// The caller holds the lock.
const PythonLine& line_of(PyThreadState* thread) {
  const PythonLine* of_library = nullptr;
  Owned<PyFrameObject> frame(PyThreadState_GetFrame(thread));
  while (frame) {
    const Owned<PyCodeObject> code(PyFrame_GetCode(frame.get()));
    CodeFacts& facts = facts_of(code.get());
    if (facts.kind == CodeFacts::Kind::program) return line_of(frame.get(), code.get(), facts);
    if (facts.kind == CodeFacts::Kind::library && of_library == nullptr)
      of_library = &line_of(frame.get(), code.get(), facts);
    frame.reset(PyFrame_GetBack(frame.get()));
  }
  return of_library == nullptr ? PythonLine::none() : *of_library;
}

const PythonLine& line_of_program() {
  if (!python_runs()) return PythonLine::none();
  const PyGILState_STATE gil = PyGILState_Ensure();
  const auto& line = line_of(PyThreadState_Get());
  PyGILState_Release(gil);
  return line;
}

// The thread that has loaded the module. It keeps its number in a process that it forks.
unsigned long main_thread = 0;

const PythonLine& line_of_main_thread() {
  if (!python_runs()) return PythonLine::none();
  const PyGILState_STATE gil = PyGILState_Ensure();
  const auto* line = &PythonLine::none();
  for (auto* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    if (thread->thread_id == main_thread) line = &line_of(thread);
  }
  PyGILState_Release(gil);
  return *line;
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
