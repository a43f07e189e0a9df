// Waiting without the interpreter's lock.
#pragma once

#include <Python.h>

namespace vdev {

/// Gives the GIL away for its lifetime if the calling thread holds it. torch's bindings release it before
/// operators, but not before storages are made or resized; what these wait for (memory that a stream still
/// uses) may need a host function in Python to run first.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace vdev
