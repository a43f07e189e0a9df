// Cuts the TCP connections of this process, which has both ends of them.
#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/native/transport/harness.hpp"

namespace vccl {

/// A second descriptor of a connection, or of a listener, that belongs to libzmq. libzmq may close its own at
/// any time, and the number may then be that of another socket, even of one that listens. The thread
/// sanitizer does not see what libzmq does with its descriptors, and would draw wrong conclusions from what
/// it sees here.
class Connection {
 public:
  explicit Connection(int descriptor)
      : number_(static_cast<int>(syscall(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, 3))) {}
  Connection(Connection&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Connection& operator=(Connection&&) = delete;
  ~Connection() {
    if (number_ >= 0) syscall(SYS_close, number_);
  }

  int number() const { return number_; }
  /// Returns whether it is a TCP connection, and is made at this moment.
  bool is_made() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    return number_ >= 0 && syscall(SYS_getpeername, number_, &address, &size) == 0 &&
           address.sin_family == AF_INET;
  }
  /// Returns whether it is a TCP socket in this state, of those in netinet/tcp.h.
  bool is_in(int state) const {
    tcp_info info{};
    socklen_t size = sizeof info;
    return number_ >= 0 && syscall(SYS_getsockopt, number_, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           info.tcpi_state == state;
  }

 private:
  int number_;
};

/// The sockets of this process for which `is_wanted` holds.
template <class Wanted>
std::vector<Connection> sockets_of_process(Wanted is_wanted) {
  constexpr int kMost = 1024;
  std::vector<Connection> found;
  for (int descriptor = 3; descriptor < kMost; ++descriptor) {
    // Those of `found` are not to be found again.
    if (std::ranges::any_of(found, [&](const auto& known) { return known.number() == descriptor; })) continue;
    if (Connection connection(descriptor); is_wanted(connection)) found.push_back(std::move(connection));
  }
  return found;
}

/// All TCP connections that are made at this moment.
inline std::vector<Connection> tcp_connections() {
  return sockets_of_process([](const Connection& connection) { return connection.is_made(); });
}

/// Resets a connection: what is under way is lost, and the other end gets an RST, as from a firewall.
inline void reset_connection(const Connection& connection) {
  sockaddr address{};
  address.sa_family = AF_UNSPEC;
  syscall(SYS_connect, connection.number(), &address, sizeof address);
}

/// Lets nothing more in on a connection. Neither end is told.
inline void silence_connection(const Connection& connection) {
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, nothing};
  if (setsockopt(connection.number(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
    throw_system("setsockopt");
}

/// Resets the attempts to connect that nobody has answered. Returns how many there were.
inline std::size_t reset_attempts() {
  const auto attempts =
      sockets_of_process([](const Connection& connection) { return connection.is_in(TCP_SYN_SENT); });
  for (const Connection& attempt : attempts) reset_connection(attempt);
  return attempts.size();
}

/// Lets the listeners of this process answer nobody while this object lives.
class SilentListeners {
 public:
  SilentListeners()
      : listeners_(
            sockets_of_process([](const Connection& connection) { return connection.is_in(TCP_LISTEN); })) {
    for (const Connection& listener : listeners_) silence_connection(listener);
  }
  ~SilentListeners() {
    int unused = 0;
    for (const Connection& listener : listeners_)
      setsockopt(listener.number(), SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
  }

 private:
  std::vector<Connection> listeners_;
};

/// Resets connections chosen at random, again and again.
class Resets {
 public:
  /// At most `longest` passes between two. After ten of them nothing happens for a while, so that a slow
  /// machine can make connections, too.
  Resets(unsigned seed, Milliseconds longest) : thread_([this, seed, longest] { run(seed, longest); }) {}
  ~Resets() { stop(); }
  void stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int count() const { return count_; }

 private:
  void rest() const {
    for (int i = 0; i < 50 && !over_; ++i) usleep(10'000);
  }

  void run(unsigned seed, Milliseconds longest) {
    std::mt19937 random(seed);
    while (!over_) {
      usleep(static_cast<useconds_t>(random() % static_cast<unsigned>(longest.count() * 1000)));
      std::vector<Connection> connections = tcp_connections();
      if (connections.empty()) continue;
      // A firewall that starts anew forgets all of them.
      if (random() % 8 == 0) {
        for (const Connection& connection : connections) reset_connection(connection);
      } else {
        reset_connection(connections[random() % connections.size()]);
      }
      connections.clear();  // they would keep connections open that libzmq closes
      if (++count_ % 10 == 0) rest();
    }
  }

  std::atomic<bool> over_{false};
  std::atomic<int> count_{0};
  std::thread thread_;
};

}  // namespace vccl
