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

/// Lets forks wait for who makes a state. Call this before the first one is made.
void guard_forks() {
  static const bool guarded = [] {
    const auto free = [] { making_states().unlock(); };
    return ::pthread_atfork([] { making_states().lock(); }, free, free) == 0;
  }();
  static_cast<void>(guarded);
}
#endif

/// Makes a state for the calling thread, and no fork begins meanwhile.
PyThreadState* make_state() {
#if PY_VERSION_HEX < 0x030C0000
  guard_forks();
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
