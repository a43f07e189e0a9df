// Which of a port's descriptors have something to read, and a thread that says so while nobody looks.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "transport/segment.hpp"

namespace vccl {

class DescriptorWatch {
 public:
  /// Starts the thread. `notify` is called on it, some time after a descriptor has become readable; not again
  /// while it stays so.
  explicit DescriptorWatch(std::function<void()> notify);
  /// Ends the thread; `notify` has returned.
  ~DescriptorWatch();
  DescriptorWatch(const DescriptorWatch&) = delete;
  DescriptorWatch& operator=(const DescriptorWatch&) = delete;

  void add(int descriptor, int owner);
  /// Before it is closed.
  void remove(int descriptor);
  /// The owners of descriptors that are readable now, one of them possibly more than once; some of them, if
  /// they are very many. One thread at a time.
  const std::vector<int>& ready();
  /// Calls `notify` every now and then, too.
  void tick(bool on);

 private:
  void run();

  std::function<void()> notify_;
  FileDescriptor levels_;  // for ready(): reports while there is something
  FileDescriptor edges_;   // for the thread: reports once, so that it does not spin until somebody has read
  FileDescriptor wake_;
  std::atomic<bool> ends_{false}, ticks_{false};
  std::vector<int> ready_;
  std::thread thread_;
};

}  // namespace vccl
