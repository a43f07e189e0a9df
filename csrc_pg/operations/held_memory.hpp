// Memory that the program must not reuse before it has waited for an operation.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

#include "csrc_device/torch/races.hpp"

namespace vccl {

/// Keeps memory of a card that an operation on another stream than the program's uses. The operation's task
/// and its Work share this object, as ProcessGroupNCCL's work and watchdog share their stashed tensors. Once
/// the program has made its stream wait for the operation, it lets go of the memory, whether or not the task
/// has run: the order of the stream keeps what comes next behind the task. If the program never waits, the
/// memory is kept until the task and the Work are gone. So what a program has allocated depends on its calls
/// alone, and not on when tasks run. Thread-safe.
///
/// It keeps storages and not tensors, because a worker may be the last owner, and destroying a tensor that
/// Python knows takes the GIL.
class HeldMemory {
 public:
  void add(c10::Storage storage) {
    const std::lock_guard lock(mutex_);
    storages_.push_back(std::move(storage));
  }

  /// `end` is that of the operation as the race detector knows it, or null.
  void let_go(const vdev::races::Point& end) {
    std::vector<c10::Storage> gone;  // destroyed after the lock has been released
    const std::lock_guard lock(mutex_);
    gone.swap(storages_);
    if (!vdev::races::is_on()) [[likely]]
      return;
    for (const auto& storage : gone) vdev::races::let_go(end, storage.data());
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Storage> storages_;
};

}  // namespace vccl
