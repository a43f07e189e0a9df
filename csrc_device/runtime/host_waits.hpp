// Records which threads are blocked in a wait of the runtime.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <vector>

#include "base/thread_waits.hpp"

namespace vdev {

/// Records, as long as it lives, that the calling thread is in a wait without a deadline. Costs four stores
/// to memory that only this thread writes.
class HostWait {
 public:
  HostWait() noexcept;
  ~HostWait();
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

 private:
  const base::ThreadWaits waits_;
};

struct WaitingThread {
  pthread_t thread;
  /// The number of the wait, which is different for each wait of a thread. If two calls of waiting_threads()
  /// return the same number for a thread, the thread has waited without a break.
  std::uint64_t wait;
};
std::vector<WaitingThread> waiting_threads();

/// Returns whether no queue of the process can go on while the threads in `blocked` are blocked. Such a queue
/// has no task to run, or one of these threads is in the midst of the queue's task, or it belongs to a
/// Promise whose fulfiller is watched.
bool queues_stand_still(const std::vector<pthread_t>& blocked);

}  // namespace vdev
