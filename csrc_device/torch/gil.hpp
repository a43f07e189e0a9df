// Releases the interpreter's lock (GIL) during a wait.
#pragma once

#include "csrc_device/torch/threads/interpreter.hpp"

namespace vdev {

/// Releases the GIL for its lifetime if the calling thread holds it.
///
/// A thread that waits for a stream or for another rank must not hold the GIL, because the wait may depend on
/// a thread of this process that runs Python (a host function, a comm hook, a tensor's finaliser). torch's
/// bindings release the GIL before operators and most calls, but not before destructors, and not before
/// storages are made or resized.
class WithoutGil {
 public:
  WithoutGil() : state_(interpreter().release_lock()) {}
  ~WithoutGil() {
    if (state_ != nullptr) interpreter().take_lock(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* const state_;
};

}  // namespace vdev
