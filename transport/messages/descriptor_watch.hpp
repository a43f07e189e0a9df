// Watches a port's descriptors, with a thread that notifies while nobody polls.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "transport/system/shared_memory.hpp"

namespace vccl {

class DescriptorWatch {
 public:
  /// Starts the thread. The thread calls `notify` some time after a descriptor has become readable, and not
  /// again while the descriptor stays readable.
  explicit DescriptorWatch(std::function<void()> notify);
  /// Ends the thread. No call of `notify` is under way afterwards.
  ~DescriptorWatch();
  DescriptorWatch(const DescriptorWatch&) = delete;
  DescriptorWatch& operator=(const DescriptorWatch&) = delete;

  void add(int descriptor, int owner);
  /// Call this before the descriptor is closed.
  void remove(int descriptor);
  /// Returns the owners of descriptors that are readable now. An owner may be there more than once, and if
  /// there are very many, only some are there. Only one thread may call this at a time.
  const std::vector<int>& ready();
  /// Makes the thread call `notify` now and then, too.
  void tick(bool on);

 private:
  void run();

  std::function<void()> notify_;
  FileDescriptor levels_;  // used by ready(): reports a descriptor as long as it is readable
  FileDescriptor edges_;   // used by the thread: reports a descriptor once, so that the thread does not spin
                           // until it has been read
  FileDescriptor wake_;
  std::atomic<bool> ends_{false}, ticks_{false};
  std::vector<int> ready_;
  std::thread thread_;
};

}  // namespace vccl
