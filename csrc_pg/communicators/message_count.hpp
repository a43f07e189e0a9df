// How many messages of a device are under way.
#pragma once

#include <condition_variable>
#include <mutex>

#include "transport/deadline.hpp"

namespace vccl {

/// Counts the messages that are under way. Thread-safe.
class MessageCount {
 public:
  void add(int change);
  /// Blocks until no message is under way, and returns true then. Returns false when `deadline` has passed or
  /// the calling thread is interrupted.
  bool wait_for_none(const Deadline& deadline);

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int under_way_ = 0;
};

}  // namespace vccl
