#include "csrc_device/torch/python/worker_gil.hpp"

#include <pthread.h>

#include <mutex>

namespace vdev {
namespace {

#if PY_VERSION_HEX < 0x030C0000
std::mutex& making_states() {
  static auto* const mutex = new std::mutex;  // leaked, because workers run until the process ends
  return *mutex;
}

void before_fork() {
  making_states().lock();
}

void after_fork() {
  making_states().unlock();
}
#endif

/// Makes a state for the calling thread, and no fork begins meanwhile.
PyThreadState* make_state() {
#if PY_VERSION_HEX < 0x030C0000
  [[maybe_unused]] static const int installed = ::pthread_atfork(&before_fork, &after_fork, &after_fork);
  // Whoever forks holds the GIL and takes this mutex, so nobody may wait for the GIL under it.
  const std::lock_guard lock(making_states());
#endif
  return PyThreadState_New(PyInterpreterState_Main());
}

}  // namespace

WorkerGil::WorkerGil() {
  if (PyGILState_GetThisThreadState() != nullptr) {
    before_ = PyGILState_Ensure();
    return;
  }
  own_ = make_state();
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
