// Whether the process of a rank on this host is still there.
#pragma once

#include <sys/types.h>

#include <string>

#include "transport/segment.hpp"

namespace vccl {

/// One peer's process. Where the system gives no pidfd, the process number is asked for instead; where the
/// process is in another pid namespace as well, the peer counts as alive and only the deadline ends a wait
/// for it.
class PeerProcess {
 public:
  PeerProcess() = default;  // a rank of this very process: as alive as we are
  /// `pid` is the peer's own view, for messages; `visible`: it is ours as well.
  PeerProcess(FileDescriptor pidfd, pid_t pid, bool visible)
      : pidfd_(std::move(pidfd)), pid_(pid), visible_(visible) {}

  bool dead() const noexcept;
  pid_t pid() const { return pid_; }
  /// The folder in which this process sees the peer's descriptors; empty where its number says nothing here.
  std::string descriptors() const;

 private:
  FileDescriptor pidfd_;
  pid_t pid_ = 0;
  bool visible_ = false;
};

}  // namespace vccl
