// Waiting without the interpreter's lock.
#pragma once

#include <Python.h>

namespace vdev {

/// Gives the GIL away for its lifetime if the calling thread holds it.
///
/// Whoever waits for a stream or for another rank must not hold it: what is waited for may hang on a thread
/// of this process that runs Python (a host function, a comm hook, a tensor's finaliser). torch's bindings
/// release it before operators and most calls, but not before destructors, nor before storages are made or
/// resized.
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
