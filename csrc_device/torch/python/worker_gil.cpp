#include "csrc_device/torch/python/worker_gil.hpp"

#include <pthread.h>

#include <mutex>

namespace vdev {
namespace {

/// Returns the mutex under which states are made. Whoever forks holds the GIL and takes this mutex, so nobody
/// may wait for the GIL under it.
std::mutex& making() {
  static auto* mutex = [] {
    ::pthread_atfork([] { making().lock(); }, [] { making().unlock(); }, [] { making().unlock(); });
    return new std::mutex;  // leaked, because workers run until the process ends
  }();
  return *mutex;
}

}  // namespace

WorkerGil::WorkerGil() {
  if (PyGILState_GetThisThreadState() != nullptr) {
    before_ = PyGILState_Ensure();
    return;
  }
  {
    const std::lock_guard lock(making());
    own_ = PyThreadState_New(PyInterpreterState_Main());
  }
  PyEval_RestoreThread(own_);
}

WorkerGil::~WorkerGil() {
  if (own_ == nullptr) {
    PyGILState_Release(before_);
  } else {
    PyThreadState_Clear(own_);
    PyThreadState_DeleteCurrent();
  }
}

}  // namespace vdev
