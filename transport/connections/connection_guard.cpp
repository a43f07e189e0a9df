#include "transport/connections/connection_guard.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/signals.hpp"
#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "transport/connections/zmq_api.hpp"
#include "transport/link_faults.hpp"

namespace vccl {
namespace {

using namespace zmq_constant;

constexpr int kBacklog = 128;
constexpr int kUnprovenPeriod = 50;  // milliseconds

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
  errno = 0;
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

/// Returns whether libzmq has closed the descriptor. It has not done so while the kernel only says that the
/// connection has ended.
bool is_gone(const std::pair<const int, WatchedListener::Connection>& entry) {
  return !is_open(entry) && errno != ENOTCONN;
}

int descriptor_of(void* socket) {
  int number = -1;
  std::size_t size = sizeof number;
  if (zmq_api().getsockopt(socket, kDescriptor, &number, &size) != 0) return -1;
  return number;
}

/// Returns a socket that listens there, or nothing, with errno.
FileDescriptor listen_at_port(addrinfo& place, int port) {
  FileDescriptor socket(base::make_socket(place.ai_family, SOCK_STREAM | SOCK_NONBLOCK));
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

/// Returns how many bytes have come over a connection. What libzmq has read counts, too.
std::uint64_t received_bytes(int connection) {
  // The C library's tcp_info ends before tcpi_bytes_received, which the kernel has had since 4.1.
  constexpr std::size_t kPlace = 128;
  std::byte info[kPlace + sizeof(std::uint64_t)];
  socklen_t size = sizeof info;
  std::uint64_t bytes = 0;
  if (getsockopt(connection, IPPROTO_TCP, TCP_INFO, info, &size) == 0 && size == sizeof info)
    std::memcpy(&bytes, info + kPlace, sizeof bytes);
  return bytes;
}

}  // namespace

// These are system calls of their own because the thread sanitizer, which follows descriptors through the C
// library, would take the closing by libzmq's thread for a race. Whoever makes a handle finds out about it.
ConnectionHandle::ConnectionHandle(int connection) noexcept
    : number_(connection < 0 ? -1 : static_cast<int>(syscall(SYS_fcntl, connection, F_DUPFD_CLOEXEC, 3))) {}

ConnectionHandle::~ConnectionHandle() {
  if (number_ >= 0) syscall(SYS_close, number_);
}

void ConnectionHandle::shutdown(int how) const noexcept {
  if (number_ >= 0) syscall(SYS_shutdown, number_, how);
}

void ConnectionHandle::reset() const noexcept {
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  if (number_ >= 0) syscall(SYS_connect, number_, &nowhere, sizeof nowhere);
}

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

std::optional<std::pair<std::string, std::string>> host_and_port(const std::string& endpoint) {
  const std::size_t begin = endpoint.find("//") + 2, colon = endpoint.rfind(':');
  if (begin < 2 || colon == std::string::npos || colon < begin) return std::nullopt;
  std::string host = endpoint.substr(begin, colon - begin);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return std::pair(std::move(host), endpoint.substr(colon + 1));
}

bool is_refused_at(const std::string& endpoint) noexcept {
  constexpr int kMoment = 50;  // milliseconds; an answer takes one turn of the network
  if (link_faults::is_cut()) return false;
  const auto place = host_and_port(endpoint);
  if (!place) return false;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  AddressInfo info;
  if (getaddrinfo(place->first.c_str(), place->second.c_str(), &hints, &info.first) != 0) return false;
  const FileDescriptor socket(base::make_socket(info.first->ai_family, SOCK_STREAM | SOCK_NONBLOCK));
  if (!socket) return false;
  if (connect(socket.get(), info.first->ai_addr, info.first->ai_addrlen) == 0) return false;
  if (errno != EINPROGRESS) return errno == ECONNREFUSED;
  pollfd item{socket.get(), POLLOUT, 0};
  int wrong = 0;
  socklen_t size = sizeof wrong;
  return poll(&item, 1, kMoment) > 0 && getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &wrong, &size) == 0 &&
         wrong == ECONNREFUSED;
}

ConnectionGuard::ConnectionGuard() : wake_(base::make_event_counter()) {
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

void ConnectionGuard::shut(WatchedListener& listener, std::optional<int> rank) {
  std::lock_guard lock(mutex_);
  listener.limit = 0;
  turn_away(listener, true);
  if (!rank) return;
  listener.proven = rank;
  auto others = [rank](int descriptor, const auto&) { return descriptor != rank; };
  end_those(listener, SHUT_RDWR, others);
}

void ConnectionGuard::end_proven(WatchedListener& listener) {
  std::lock_guard lock(mutex_);
  const std::optional<int> rank = listener.proven;
  auto is_rank = [rank](int descriptor, const auto&) { return descriptor == rank; };
  if (rank) end_those(listener, SHUT_RDWR, is_rank);
}

void ConnectionGuard::end_connections(WatchedListener& listener) {
  std::lock_guard lock(mutex_);
  listener.reopens = false;
  listener.limit = 0;
  turn_away(listener, true);
  auto all = [](int, const auto&) { return true; };
  end_those(listener, SHUT_RD, all);
}

bool ConnectionGuard::has_connections(WatchedListener& listener) {
  std::lock_guard lock(mutex_);
  read_events(listener);
  std::erase_if(listener.connections, is_gone);
  return !listener.connections.empty();
}

/// Ends the connections of which chosen(descriptor, connection) is true.
void ConnectionGuard::end_those(WatchedListener& listener, int how, Choice chosen) {
  struct One {
    std::uint64_t number;
    std::unique_ptr<ConnectionHandle> handle;
  };
  read_events(listener);
  std::map<int, One> all;
  for (const auto& [descriptor, connection] : listener.connections) {
    if (chosen(descriptor, connection))
      all[descriptor] = {connection.number, std::make_unique<ConnectionHandle>(descriptor)};
  }
  read_events(listener);
  for (const auto& [descriptor, one] : all) {
    const auto found = listener.connections.find(descriptor);
    if (found != listener.connections.end() && found->second.number == one.number && is_open(*found))
      one.handle->shutdown(how);
  }
}

/// Ends connections to a pull over which too much has come from somebody who may be a stranger. Returns
/// whether there is any such connection, which is to be looked at again.
bool ConnectionGuard::bound_unproven(WatchedListener& listener) {
  if (!listener.makes_room) return false;
  bool any = false;
  auto floods = [&](int descriptor, const auto&) {
    const bool unproven = descriptor != listener.proven;
    any |= unproven;
    return unproven && received_bytes(descriptor) > kMostUnproven;
  };
  if (std::ranges::any_of(listener.connections,
                          [&](const auto& entry) { return floods(entry.first, entry.second); }))
    end_those(listener, SHUT_RDWR, floods);
  return any;
}

void ConnectionGuard::reopen(WatchedListener& listener) {
  std::lock_guard lock(mutex_);
  listener.limit = listener.places;
  listener.proven.reset();
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
    bool unproven = false;
    items.assign(1, {wake_.get(), POLLIN, 0});
    {
      std::lock_guard lock(mutex_);
      if (ends_) return;
      // libzmq's descriptors become readable only after an attempt to read, so all monitors are read each
      // time.
      for (const auto& listener : listeners_) {
        read_events(*listener);
        unproven |= bound_unproven(*listener);
        items.push_back({descriptor_of(listener->monitor), POLLIN, 0});
      }
    }
    // A listener that is dismissed meanwhile wakes this thread. Until then its descriptor's number may belong
    // to another file, which costs at most one idle round.
    poll(items.data(), items.size(), unproven ? kUnprovenPeriod : -1);
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
