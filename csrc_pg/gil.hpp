// Waiting without the interpreter's lock.
#pragma once

#include <Python.h>

namespace vccl {

/// Gives the GIL away for its lifetime if the calling thread holds it.
///
/// Whoever waits for another rank must not hold it: that rank's progress, or our own worker's, may hang on a
/// thread of this process that runs Python (a comm hook, a tensor's finaliser). torch's bindings release
/// it before most calls, but not before destructors, nor for callers that are Python below a dispatcher.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace vccl
