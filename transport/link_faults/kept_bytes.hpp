// What libzmq has sent on links, and what has not left yet.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "base/descriptor.hpp"
#include "transport/deadline.hpp"

namespace vccl::link_faults {

/// Keeps bytes for connections until they are due, and sends them in their order from a thread of its own.
/// The thread is there while bytes are kept. A connection that libzmq closes stays open until what is kept
/// for it has left. Thread-safe.
class KeptBytes {
 public:
  /// Keeps bytes that libzmq sends on a connection until `due`, and until all that came before has left.
  /// Returns false if they cannot be kept. `connection` is a number that no other connection has.
  bool keep(ino_t connection, int descriptor, const void* data, std::size_t size, Clock::time_point due);
  /// Returns whether anything is kept for a connection, or for any.
  bool holds(ino_t connection);
  bool empty();
  /// Lets everything leave now.
  void hurry();
  /// Blocks until nothing is kept, for at most `more` longer than anything is to be kept.
  void wait(Milliseconds more);

 private:
  struct Piece {
    Clock::time_point due;
    std::string bytes;
    std::size_t sent = 0;
  };
  struct Queue {
    base::FileDescriptor connection;
    std::deque<Piece> pieces;
  };
  void run();
  Clock::time_point send_due();
  static Clock::time_point send_due(Queue& queue, Clock::time_point now);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ino_t, Queue> queues_;
  bool runs_ = false;  // the thread is there
};

}  // namespace vccl::link_faults
