// Ranks and strangers at the listener of a hand-over.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "tests/native/transport/harness.hpp"
#include "transport/bootstrap/unix_socket.hpp"

namespace vccl {

/// The next connection of this user.
inline Channel accept_one(Listener& listener) {
  while (true) {
    wait_for_any(listener, {}, Deadline::in(Milliseconds(1000)));
    if (auto arrived = listener.accept(1); !arrived.empty()) return std::move(arrived.front());
  }
}

/// Connects as a stranger does, who checks nothing. Empty if the listener's queue is full.
inline FileDescriptor connect_as_stranger(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) return socket;
  if (errno != EAGAIN) throw_system("connecting as a stranger");
  return FileDescriptor();
}

/// Leaves no room in the listener's queue. A connection stays there although its stranger has hung up.
inline void fill_queue(const std::string& name) {
  while (connect_as_stranger(name)) {
  }
}

/// Only root can become somebody else.
inline void become_another_user() {
  if (setresuid(65534, 65534, 65534) != 0) throw check::Failure("setresuid");
}

}  // namespace vccl
