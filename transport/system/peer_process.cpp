#include "transport/system/peer_process.hpp"

#include <poll.h>
#include <signal.h>

#include <cerrno>

#include "base/text.hpp"

namespace vccl {

bool PeerProcess::dead() const noexcept {
  if (pidfd_) {
    // A pidfd is readable from the moment the process is a zombie, even if no parent has waited for it.
    pollfd entry{pidfd_.get(), POLLIN, 0};
    return poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN);
  }
  return visible_ && kill(pid_, 0) != 0 && errno == ESRCH;
}

std::string PeerProcess::descriptors() const {
  if (pid_ == 0) return "/proc/self/fd/";
  return visible_ ? base::text("/proc/", pid_, "/fd/") : "";
}

}  // namespace vccl
