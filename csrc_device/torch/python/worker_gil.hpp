// The GIL on a stream's worker, which no fork of the program may meet half-way.
#pragma once

#include <Python.h>

namespace vdev {

/// Holds the GIL for its lifetime, on any thread, as PyGILState_Ensure() does. PyGILState_Ensure() makes the
/// state of a new thread under a lock of Python, without the GIL. If the program forks at that moment, the
/// lock stays taken in the child, and Python 3.10 and 3.11 wait for it in PyOS_AfterFork_Child() for ever,
/// before they make it new. There a fork waits while a WorkerGil makes a state. From 3.12 on, Python itself
/// takes its lock before it forks, and it would wait for ever for a thread that held another lock meanwhile.
class WorkerGil {
 public:
  WorkerGil();
  ~WorkerGil();
  WorkerGil(const WorkerGil&) = delete;
  WorkerGil& operator=(const WorkerGil&) = delete;

 private:
  PyThreadState* own_ = nullptr;  // null if the thread had a state before
  PyGILState_STATE before_{};
};

}  // namespace vdev
