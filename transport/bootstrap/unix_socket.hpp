// Packets and file descriptors between processes of one host and one user. The Unix sockets are in the
// abstract namespace, so they leave no file behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {

class Listener;

/// One connection. Each end has checked that the other end's process belongs to the same user.
class Channel {
 public:
  static constexpr std::size_t kMaxPacket = 64 * 1024;
  static constexpr std::size_t kMaxDescriptors = 250;  // the kernel's limit for one packet is 253

  struct Packet {
    std::string bytes;
    std::vector<FileDescriptor> descriptors;
  };

  /// Blocks while as many connections as the listener has room for wait to be accepted. Throws Error(timeout)
  /// if that is still so at the deadline, Error(aborted) if the thread is interrupted meanwhile, and
  /// Error(bootstrap) if no process listens there, or if the listener belongs to another user.
  static Channel connect(const std::string& name, const Deadline& deadline);

  /// Send and receive one packet. Both throw Error(timeout) at the deadline, and Error(bootstrap) if the peer
  /// has closed the connection.
  void send(const std::string& bytes, std::span<const int> descriptors, const Deadline& deadline);
  Packet receive(const Deadline& deadline);
  /// Returns whether receive() would return or throw without blocking.
  bool ready() const;

  /// Returns the process at the other end as this process sees it, or 0 if this pid namespace hides it.
  pid_t peer_pid() const { return pid_; }
  /// Returns a descriptor that becomes readable when the peer's process ends. It is empty if the system
  /// cannot give one.
  FileDescriptor peer_pidfd() const;

 private:
  friend class Listener;
  friend void wait_for_any(const Listener&, std::span<const Channel* const>, const Deadline&);
  explicit Channel(FileDescriptor socket);

  FileDescriptor socket_;
  pid_t pid_ = 0;
};

/// A listening socket under a random name. Processes of other users can read the name in /proc/net/unix and
/// connect, so whoever waits for ranks has to call accept() again and again: connections that nobody accepts
/// fill the queue of the socket, and keep ranks out.
class Listener {
 public:
  Listener();
  const std::string& name() const { return name_; }
  /// Accepts the connections that wait in the queue, without blocking. Returns those of this user, at most
  /// `most`, and closes those of other users, of which one call closes at most as many as the queue holds. So
  /// a process that connects without end cannot keep the caller here.
  std::vector<Channel> accept(std::size_t most);
  /// Returns how many connections of other users accept() has closed.
  std::uint64_t turned_away() const { return turned_away_; }
  /// Returns "closed 2 connections of other users (uid 65534)".
  std::string turned_away_text() const;

 private:
  friend void wait_for_any(const Listener&, std::span<const Channel* const>, const Deadline&);

  std::string name_;
  FileDescriptor socket_;
  std::uint64_t turned_away_ = 0;
  std::set<uid_t> strangers_;  // some of the users whose connections were closed, for the text
};

/// Blocks until somebody connects to the listener, or one of the channels is ready, at most until the
/// deadline. Throws Error(aborted) if the thread is interrupted.
void wait_for_any(const Listener& listener, std::span<const Channel* const> channels,
                  const Deadline& deadline);

/// Returns the result of pidfd_open(). It is empty if the system cannot give one.
FileDescriptor open_pidfd(pid_t pid);

}  // namespace vccl
