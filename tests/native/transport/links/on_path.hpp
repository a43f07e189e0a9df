// Somebody on the path between two ranks: a proxy that may change, repeat or hold what passes, and close
// connections.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "tests/native/check.hpp"
#include "transport/system/shared_memory.hpp"

namespace vccl {

/// Connects to "tcp://127.0.0.1:PORT".
inline FileDescriptor dial_loopback(const std::string& endpoint, int type = SOCK_STREAM) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  FileDescriptor socket(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
  if (!socket) throw_system("socket");
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS)
    return {};
  return socket;
}

/// Does the same, again and again while nobody answers. A listener that does not know yet that its last
/// connection has ended answers nobody, and the system would try again after a second only.
inline FileDescriptor dial_again_and_again(const std::string& endpoint) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    FileDescriptor socket = dial_loopback(endpoint, SOCK_STREAM | SOCK_NONBLOCK);
    if (!socket) return socket;
    pollfd item{socket.get(), POLLOUT, 0};
    if (poll(&item, 1, 20) <= 0) continue;
    int wrong = 0;
    socklen_t size = sizeof wrong;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &wrong, &size);
    return wrong == 0 ? std::move(socket) : FileDescriptor();
  }
  return {};
}

/// Makes the end of a connection a reset, in place of an orderly end.
inline void end_by_reset(const FileDescriptor& socket) {
  const linger now{1, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

class OnPath {
 public:
  enum class Then { pass, close, reset, hold };
  /// Which piece it is: of which connection, which one of those that came over it in both directions, and
  /// where it goes. The first ones have number 0.
  struct Passing {
    int connection, piece;
    bool to_target;
  };
  /// Says what becomes of what has come in one piece, which it may change. It is called on the proxy's
  /// thread.
  using Judge = std::function<Then(const Passing& passing, std::string& piece)>;

  OnPath(std::string target, Judge judge) : target_(std::move(target)), judge_(std::move(judge)) {
    listening_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* place = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    CHECK(::bind(listening_.get(), place, size) == 0 && listen(listening_.get(), 64) == 0 &&
          getsockname(listening_.get(), place, &size) == 0);
    endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = std::thread([this] { run(); });
  }
  ~OnPath() {
    over_ = true;
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }
  OnPath(const OnPath&) = delete;
  OnPath& operator=(const OnPath&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  int accepted() const { return accepted_; }
  /// Ends all connections.
  void reset_all() { end_all(Then::reset); }
  void end_all(Then how) {
    ends_ = how;
    eventfd_write(wake_.get(), 1);
  }

 private:
  struct End {
    FileDescriptor socket;
    std::string out;    // waits to be written here
    bool held = false;  // nothing is read from here any more
  };
  struct Pair {
    End client, target;
    int number, pieces = 0;
  };
  static constexpr std::size_t kMostWaiting = 1 << 20;

  void run() {
    while (!over_) {
      std::vector<pollfd> items{{wake_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        const auto add = [&](const End& end, const End& other) {
          const bool reads = !end.held && other.out.size() < kMostWaiting;
          const int events = (reads ? POLLIN : 0) | (end.out.empty() ? 0 : POLLOUT);
          items.push_back({end.socket.get(), static_cast<short>(events), 0});
        };
        add(pair.client, pair.target);
        add(pair.target, pair.client);
      }
      poll(items.data(), items.size(), -1);
      eventfd_t count;
      eventfd_read(wake_.get(), &count);
      const Then ends = ends_.exchange(Then::pass);
      std::size_t i = 2;
      for (auto pair = pairs_.begin(); pair != pairs_.end(); i += 2) {
        const Then then = ends != Then::pass ? ends : serve(*pair, items[i].revents, items[i + 1].revents);
        if (then == Then::reset) {
          end_by_reset(pair->client.socket);
          end_by_reset(pair->target.socket);
        }
        pair = then == Then::close || then == Then::reset ? pairs_.erase(pair) : std::next(pair);
      }
      if (items[1].revents) welcome();
    }
  }

  void welcome() {
    FileDescriptor client(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) return;
    const int number = accepted_++;
    FileDescriptor target = dial_again_and_again(target_);
    if (!target) return end_by_reset(client);
    pairs_.push_back({{std::move(client)}, {std::move(target)}, number});
  }

  Then serve(Pair& pair, int from_client, int from_target) {
    Then then = Then::pass;
    if (from_client & POLLOUT) then = write_to(pair.client);
    if (then == Then::pass && (from_target & POLLOUT)) then = write_to(pair.target);
    if (then == Then::pass && (from_client & ~POLLOUT)) then = read_from(pair, true);
    if (then == Then::pass && (from_target & ~POLLOUT)) then = read_from(pair, false);
    return then == Then::hold ? Then::pass : then;
  }

  Then write_to(End& end) {
    const ssize_t sent = ::send(end.socket.get(), end.out.data(), end.out.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN ? Then::pass : Then::close;
    end.out.erase(0, static_cast<std::size_t>(sent));
    return Then::pass;
  }

  Then read_from(Pair& pair, bool to_target) {
    End& from = to_target ? pair.client : pair.target;
    End& to = to_target ? pair.target : pair.client;
    std::string piece(65'536, '\0');
    const ssize_t got = recv(from.socket.get(), piece.data(), piece.size(), 0);
    if (got < 0 && errno == EAGAIN) return Then::pass;
    if (got <= 0) return Then::close;
    piece.resize(static_cast<std::size_t>(got));
    const Then then = judge_({pair.number, pair.pieces++, to_target}, piece);
    if (then == Then::close || then == Then::reset) return then;
    if (then == Then::hold) from.held = true;
    to.out += piece;
    return to.out.empty() ? Then::pass : write_to(to);
  }

  const std::string target_;
  const Judge judge_;
  std::string endpoint_;
  FileDescriptor listening_, wake_;
  std::list<Pair> pairs_;
  std::atomic<bool> over_{false};
  std::atomic<Then> ends_{Then::pass};
  std::atomic<int> accepted_{0};
  std::thread thread_;
};

}  // namespace vccl
