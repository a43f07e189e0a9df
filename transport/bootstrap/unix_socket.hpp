// Packets and file descriptors between processes of one host and one user. The Unix sockets are in the
// abstract namespace, so they leave no file behind.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/host/segment.hpp"

namespace vccl {

/// One connection. Each end has checked that the other end's process belongs to the same user.
class Channel {
 public:
  static constexpr std::size_t kMaxPacket = 64 * 1024;
  static constexpr std::size_t kMaxDescriptors = 250;  // the kernel's limit for one packet is 253

  struct Packet {
    std::string bytes;
    std::vector<FileDescriptor> descriptors;
  };

  /// Throws Error(bootstrap) if no process listens there, or if the listener belongs to another user.
  static Channel connect(const std::string& name);

  /// Send and receive one packet. Both throw Error(timeout) at the deadline, and Error(bootstrap) if the peer
  /// has closed the connection.
  void send(const std::string& bytes, std::span<const int> descriptors, const Deadline& deadline);
  Packet receive(const Deadline& deadline);

  /// Returns the process at the other end as this process sees it, or 0 if this pid namespace hides it.
  pid_t peer_pid() const { return pid_; }
  /// Returns a descriptor that becomes readable when the peer's process ends. It is empty if the system
  /// cannot give one.
  FileDescriptor peer_pidfd() const;

 private:
  friend class Listener;
  explicit Channel(FileDescriptor socket);

  FileDescriptor socket_;
  pid_t pid_ = 0;
};

/// A listening socket under a random name.
class Listener {
 public:
  Listener();
  const std::string& name() const { return name_; }
  /// Blocks until a process of this user connects. Closes connections of other users. Throws Error(timeout).
  Channel accept(const Deadline& deadline);

 private:
  std::string name_;
  FileDescriptor socket_;
};

/// Returns the result of pidfd_open(). It is empty if the system cannot give one.
FileDescriptor open_pidfd(pid_t pid);

}  // namespace vccl
