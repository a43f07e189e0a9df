// Packets and file descriptors between processes of one host and one user: Unix sockets in the abstract
// namespace, which leave no file behind.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/segment.hpp"

namespace vccl {

/// One connection. Both ends have checked that the other belongs to their own user.
class Channel {
 public:
  static constexpr std::size_t kMaxPacket = 64 * 1024;
  static constexpr std::size_t kMaxDescriptors = 250;  // the kernel's limit for one packet is 253

  struct Packet {
    std::string bytes;
    std::vector<FileDescriptor> descriptors;
  };

  /// Throws Error(bootstrap) when nobody listens there, or the listener is another user's.
  static Channel connect(const std::string& name);

  /// Throw Error(timeout) at the deadline, Error(bootstrap) when the peer has hung up.
  void send(const std::string& bytes, std::span<const int> descriptors, const Deadline& deadline);
  Packet receive(const Deadline& deadline);

  /// The process at the other end, as this process sees it; 0 when its namespace hides it.
  pid_t peer_pid() const { return pid_; }
  /// A descriptor that becomes readable when that process ends; empty where the system cannot give one.
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
  /// The next connection from a process of our own user; others are hung up on. Throws Error(timeout).
  Channel accept(const Deadline& deadline);

 private:
  std::string name_;
  FileDescriptor socket_;
};

/// pidfd_open; empty where the system cannot give one.
FileDescriptor open_pidfd(pid_t pid);

}  // namespace vccl
