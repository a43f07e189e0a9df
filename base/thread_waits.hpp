// Tells others whether a thread of the process waits for other ranks.
#pragma once

#include <atomic>

namespace base {

/// Marks the calling thread, as long as the object lives, as one that can go on only when another rank or a
/// stream does. Costs two stores to memory that only this thread writes.
class ThreadWaits {
 public:
  ThreadWaits() noexcept;
  ~ThreadWaits();
  ThreadWaits(const ThreadWaits&) = delete;
  ThreadWaits& operator=(const ThreadWaits&) = delete;

  /// Returns how many marks the calling thread has. The reference is valid until the thread ends, and other
  /// threads may read it. Nothing else follows from what they read.
  static const std::atomic<int>& of_this_thread() noexcept;
};

}  // namespace base
