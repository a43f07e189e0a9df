// Tells whether the process of a rank on this host still lives.
#pragma once

#include <sys/types.h>

#include <string>

#include "transport/system/shared_memory.hpp"

namespace vccl {

/// Observes the process of one peer through its pidfd. Where the system gives no pidfd, the process number is
/// checked instead. If the peer is also in another pid namespace, the peer counts as alive, and only the
/// deadline ends a wait for it.
class PeerProcess {
 public:
  PeerProcess() = default;  // a rank of this very process: it counts as alive
  /// `pid` is the peer's process number in the peer's own namespace, for messages. `visible` says that the
  /// process has this number in this process's namespace too.
  PeerProcess(FileDescriptor pidfd, pid_t pid, bool visible)
      : pidfd_(std::move(pidfd)), pid_(pid), visible_(visible) {}

  bool dead() const noexcept;
  pid_t pid() const { return pid_; }
  /// Returns the folder in /proc that lists the peer's open descriptors. Returns an empty string if the
  /// peer's process number means nothing in this pid namespace.
  std::string descriptors() const;

 private:
  FileDescriptor pidfd_;
  pid_t pid_ = 0;
  bool visible_ = false;
};

}  // namespace vccl
