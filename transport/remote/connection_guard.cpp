#include "transport/remote/connection_guard.hpp"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>
#include <vector>

#include "base/signals.hpp"
#include "base/text.hpp"
#include "transport/remote/zmq_api.hpp"

namespace vccl {
namespace {

using namespace zmq_constant;

constexpr int kBacklog = 128;

struct AddressInfo {
  addrinfo* first = nullptr;
  ~AddressInfo() {
    if (first) freeaddrinfo(first);
  }
};

/// Returns the address and port of the other end of a connection.
std::optional<std::pair<std::string, std::string>> other_end(int connection) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getpeername(connection, address, &length) != 0 ||
      getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV)) {
    return std::nullopt;
  }
  return std::pair<std::string, std::string>(host, port);
}

/// Returns whether the descriptor is still that connection's.
bool is_open(const std::pair<const int, WatchedListener::Connection>& entry) {
  const auto end = other_end(entry.first);
  return end && end->first == entry.second.address && end->second == entry.second.port;
}

int descriptor_of(void* socket) {
  int number = -1;
  std::size_t size = sizeof number;
  if (zmq_api().getsockopt(socket, kDescriptor, &number, &size) != 0) return -1;
  return number;
}

/// Returns a socket that listens there, or nothing, with errno.
FileDescriptor listen_at_port(addrinfo& place, int port) {
  FileDescriptor socket(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return socket;
  // Both structures have the port at the same place.
  reinterpret_cast<sockaddr_in*>(place.ai_addr)->sin_port = htons(static_cast<std::uint16_t>(port));
  // A chosen port may still have connections of an earlier process, which have ended.
  const int on = 1;
  if ((port != 0 && setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) ||
      bind(socket.get(), place.ai_addr, place.ai_addrlen) != 0 || listen(socket.get(), kBacklog) != 0) {
    const int wrong = errno;
    socket.reset();
    errno = wrong;
    return socket;
  }
  return socket;
}

}  // namespace

void tune_connection(int socket, int milliseconds) noexcept {
  constexpr int kLongestPause = 44;  // TCP_RTO_MAX_MS, which the C library's headers do not have yet
  const int pause = 1'000;
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
  setsockopt(socket, IPPROTO_TCP, kLongestPause, &pause, sizeof pause);
}

FileDescriptor listen_at(const std::string& address, const PortRange& ports) {
  const bool brackets = address.starts_with('[') && address.ends_with(']');
  const std::string host = brackets ? address.substr(1, address.size() - 2) : address;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  AddressInfo info;
  if (const int wrong = getaddrinfo(host.c_str(), "0", &hints, &info.first); wrong != 0) {
    throw Error(ErrorCode::system, base::text("listening at ", address, " failed: ", gai_strerror(wrong)));
  }
  for (int port = ports.first; port <= ports.last; ++port) {
    if (FileDescriptor socket = listen_at_port(*info.first, port); socket) return socket;
    if (errno != EADDRINUSE)
      throw_system(base::text("listening at ", address, port ? base::text(" port ", port) : ""));
  }
  throw Error(ErrorCode::system,
              base::text("no port of VCCL_PORT_RANGE=", ports.first, "-", ports.last, " is free at ", address,
                         ". A rank needs up to five for each group and device: widen the range, or end "
                         "what else listens there."));
}

bool is_refused_at(const std::string& endpoint) noexcept {
  constexpr int kMoment = 50;  // milliseconds; an answer takes one turn of the network
  const std::size_t begin = endpoint.find("//") + 2, colon = endpoint.rfind(':');
  if (begin < 2 || colon == std::string::npos || colon < begin) return false;
  std::string host = endpoint.substr(begin, colon - begin);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  AddressInfo info;
  if (getaddrinfo(host.c_str(), endpoint.c_str() + colon + 1, &hints, &info.first) != 0) return false;
  const FileDescriptor socket(::socket(info.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return false;
  if (connect(socket.get(), info.first->ai_addr, info.first->ai_addrlen) == 0) return false;
  if (errno != EINPROGRESS) return errno == ECONNREFUSED;
  pollfd item{socket.get(), POLLOUT, 0};
  int wrong = 0;
  socklen_t size = sizeof wrong;
  return poll(&item, 1, kMoment) > 0 && getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &wrong, &size) == 0 &&
         wrong == ECONNREFUSED;
}

ConnectionGuard::ConnectionGuard() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw_system("eventfd");
  base::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "vccl guard");
  } catch (const std::system_error& error) {
    errno = error.code().value();
  }
  if (!thread_.joinable()) throw_system("starting the thread that watches who connects");
}

ConnectionGuard::~ConnectionGuard() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void ConnectionGuard::attend(std::shared_ptr<WatchedListener> listener) {
  std::lock_guard lock(mutex_);
  listeners_.push_back(std::move(listener));
  eventfd_write(wake_.get(), 1);
}

void ConnectionGuard::shut(WatchedListener& listener) {
  std::lock_guard lock(mutex_);
  listener.limit = 0;
  turn_away(listener, true);
}

void ConnectionGuard::reopen(WatchedListener& listener) {
  std::lock_guard lock(mutex_);
  listener.limit = listener.places;
  std::erase_if(listener.connections, [](const auto& entry) { return !is_open(entry); });
  turn_away(listener, listener.connections.size() >= listener.limit);
}

void ConnectionGuard::dismiss(const std::shared_ptr<WatchedListener>& listener) noexcept {
  std::lock_guard lock(mutex_);
  listeners_.remove(listener);
  eventfd_write(wake_.get(), 1);
}

void ConnectionGuard::run() {
  std::vector<pollfd> items;
  while (true) {
    items.assign(1, {wake_.get(), POLLIN, 0});
    {
      std::lock_guard lock(mutex_);
      if (ends_) return;
      // libzmq's descriptors become readable only after an attempt to read, so all monitors are read each
      // time.
      for (const auto& listener : listeners_) {
        read_events(*listener);
        items.push_back({descriptor_of(listener->monitor), POLLIN, 0});
      }
    }
    // A listener that is dismissed meanwhile wakes this thread. Until then its descriptor's number may belong
    // to another file, which costs at most one idle round.
    poll(items.data(), items.size(), -1);
    eventfd_t count;
    eventfd_read(wake_.get(), &count);
  }
}

/// Reads the events. An event has two frames: {number, value}, and the endpoint.
void ConnectionGuard::read_events(WatchedListener& listener) {
  ZmqMessage frame;
  while (zmq_api().msg_recv(frame.raw(), listener.monitor, kDontWait) >= 0) {
    std::uint16_t event = 0;
    std::int32_t value = 0;
    if (!zmq_api().msg_more(frame.raw()) || frame.size() != sizeof event + sizeof value) continue;
    std::memcpy(&event, frame.data(), sizeof event);
    std::memcpy(&value, frame.data() + sizeof event, sizeof value);
    understand(listener, event, value);
  }
}

void ConnectionGuard::understand(WatchedListener& listener, int event, int value) {
  if (event == kEventAccepted) {
    auto end = other_end(value).value_or(std::pair<std::string, std::string>());
    listener.connections[value] = {std::move(end.first), std::move(end.second), listener.greeted,
                                   ++listener.accepted};
  } else if (event == kEventHandshakeSucceeded) {
    ++listener.greeted;
  } else if (event == kEventDisconnected) {
    // libzmq does not say whose handshake succeeded. If no handshake has succeeded since this connection was
    // accepted, or one has just failed, the connection was not a rank's.
    const auto found = listener.connections.find(value);
    if (found != listener.connections.end()) {
      if (listener.failed || found->second.greeted == listener.greeted)
        tell_of_stranger(listener, found->second);
      listener.connections.erase(found);
    }
    listener.failed = false;
    if (listener.reopens) listener.limit = listener.places;
    eventfd_write(listener.ends.get(), 1);
  } else {
    listener.failed = true;  // the end of its connection is the next event
    return;
  }
  if (listener.connections.size() >= listener.limit && !listener.shut) {
    // libzmq does not report the ends of some connections that it ended itself. Those connections are removed
    // here.
    std::erase_if(listener.connections, [](const auto& entry) { return !is_open(entry); });
    if (listener.makes_room && listener.connections.size() >= listener.limit) make_room(listener);
  }
  turn_away(listener, listener.connections.size() >= listener.limit);
}

/// Ends the connection that is open for longest: the rank that this listener waits for says at once who it
/// is, and then nobody else is let in. So those who connect and say nothing cannot keep the rank out.
void ConnectionGuard::make_room(WatchedListener& listener) {
  const auto oldest = std::ranges::min_element(listener.connections, {},
                                               [](const auto& entry) { return entry.second.number; });
  if (oldest == listener.connections.end() || !is_open(*oldest)) return;
  tell_of_stranger(listener, oldest->second);
  ::shutdown(oldest->first, SHUT_RDWR);  // libzmq then ends the connection, which is the next event
}

/// The address is empty if the connection ended before the guard could read it.
void ConnectionGuard::tell_of_stranger(WatchedListener& listener,
                                       const WatchedListener::Connection& connection) {
  if (!listener.strangers.allows(connection.address)) return;
  listener.log.info(base::text(
      "turned away somebody at ", connection.address.empty() ? "an unknown address" : connection.address,
      " who connected to ", listener.endpoint,
      " and did not prove to be of the group. What comes from there is not told for a minute."));
}

/// Attaches a filter that drops every packet. It holds for new connections, because existing ones have no
/// filter. A new peer tries again, as TCP does, until the filter is removed.
void ConnectionGuard::turn_away(WatchedListener& listener, bool everybody) {
  if (listener.shut == everybody) return;
  listener.shut = everybody;
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, nothing};
  const int none = 0;
  const int failed =
      everybody ? setsockopt(listener.listening, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program)
                : setsockopt(listener.listening, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
  if (failed) {
    listener.log.info(base::text("cannot bound the connections of strangers here: ", std::strerror(errno)));
  } else if (everybody && listener.limit > 0 && listener.strangers.allows("everybody")) {
    listener.log.warn(base::text(listener.connections.size(), " connections to ", listener.endpoint,
                                 " are open, more than ranks make: nobody is let in until some of them end"));
  }
}

}  // namespace vccl
