#include "transport/bootstrap/unix_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/periods.hpp"
#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "transport/interruption_check.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

#ifndef SO_PEERPIDFD
constexpr int kPeerPidfd = 77;
#else
constexpr int kPeerPidfd = SO_PEERPIDFD;
#endif

// The longest queue of connections that wait to be accepted. The system may shorten it (net.core.somaxconn).
constexpr int kQueue = 4096;
// A rank whose leader has a full queue tries to connect again after this pause, and so does one that has
// handed over too much at once. A Unix socket tells nobody when there is room.
constexpr Milliseconds kPauseAtFullQueue{1};
// How many users the text about closed connections names.
constexpr std::size_t kNamedStrangers = 4;
const char kWaiting[] = "it waited for the hand-over of shared memory";

struct Address {
  sockaddr_un data{};
  socklen_t length = 0;
};

// An abstract name starts with a zero byte, and its length is that of the address.
Address abstract_address(const std::string& name) {
  Address address;
  address.data.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.data.sun_path) {
    throw Error(ErrorCode::protocol, base::text("a hand-over socket's name has ", name.size(), " bytes"));
  }
  std::memcpy(address.data.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// Returns whether one of the descriptors has become ready before the deadline.
bool poll_until(std::span<pollfd> entries, const Deadline& deadline) {
  while (true) {
    const auto left = std::chrono::ceil<Milliseconds>(deadline.at - Clock::now()).count();
    const int ready =
        poll(entries.data(), entries.size(),
             static_cast<int>(std::clamp<long long>(left, 0, base::kInterruptionPeriod.count())));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_system("poll on a hand-over socket");
    throw_if_interrupted(kWaiting);
    if (deadline.passed()) return false;
  }
}

void wait_ready(int fd, short events, const Deadline& deadline) {
  pollfd entry{fd, events, 0};
  if (!poll_until({&entry, 1}, deadline))
    throw Error(ErrorCode::timeout, "the hand-over of shared memory timed out");
}

// The kernel lets a user have no more descriptors under way between processes than one process may have open
// (RLIMIT_NOFILE). Others arrive while the caller waits, and nobody tells when.
void await_fewer_in_flight(const Deadline& deadline) {
  throw_if_interrupted(kWaiting);
  if (deadline.passed()) {
    throw Error(
        ErrorCode::timeout,
        "the hand-over of shared memory timed out, because too many descriptors of this user are under "
        "way between processes: raise the limit on open files (ulimit -n)");
  }
  std::this_thread::sleep_for(kPauseAtFullQueue);
}

FileDescriptor make_socket(int flags) {
  FileDescriptor socket(base::make_socket(AF_UNIX, SOCK_SEQPACKET | flags));
  if (!socket) throw_system("making a Unix socket");
  return socket;
}

[[noreturn]] void throw_hung_up() {
  throw Error(ErrorCode::bootstrap, "the process at the other end of the hand-over socket has gone");
}

// Returns the kernel's record of which process connected, or which process called listen().
ucred credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) throw_system("SO_PEERCRED");
  return peer;
}

}  // namespace

FileDescriptor open_pidfd(pid_t pid) {
  return FileDescriptor(pid > 0 ? base::open_pidfd(pid) : -1);
}

Channel::Channel(FileDescriptor socket) : socket_(std::move(socket)) {
  const ucred peer = credentials(socket_.get());
  if (peer.uid != geteuid()) {
    throw Error(ErrorCode::bootstrap,
                base::text("the process at the other end of the hand-over socket belongs to user ", peer.uid,
                           ", not to user ", geteuid()));
  }
  pid_ = peer.pid;
}

Channel Channel::connect(const std::string& name, const Deadline& deadline) {
  FileDescriptor socket = make_socket(SOCK_NONBLOCK);
  const Address address = abstract_address(name);
  auto next_check = Clock::now();
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.data), address.length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      throw Error(ErrorCode::bootstrap,
                  base::text("connecting to the hand-over socket failed: ", std::strerror(errno)));
    }
    if (deadline.passed()) throw Error(ErrorCode::timeout, "the queue of the hand-over socket was full");
    if (Clock::now() >= next_check) {
      next_check = Clock::now() + base::kInterruptionPeriod;
      throw_if_interrupted(kWaiting);
    }
    std::this_thread::sleep_for(kPauseAtFullQueue);
  }
  return Channel(std::move(socket));
}

void Channel::send(const std::string& bytes, std::span<const int> descriptors, const Deadline& deadline) {
  if (bytes.size() > kMaxPacket || descriptors.size() > kMaxDescriptors) {
    throw Error(ErrorCode::invalid, "a hand-over packet is too large");
  }
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  while (true) {
    wait_ready(socket_.get(), POLLOUT, deadline);
    if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return;
    if (errno == EPIPE || errno == ECONNRESET) throw_hung_up();
    if (errno == ETOOMANYREFS) {
      await_fewer_in_flight(deadline);
      continue;
    }
    if (errno != EINTR && errno != EAGAIN) throw_system("handing over descriptors");
  }
}

Channel::Packet Channel::receive(const Deadline& deadline) {
  Packet packet;
  packet.bytes.resize(kMaxPacket);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  ssize_t size;
  while (true) {
    wait_ready(socket_.get(), POLLIN, deadline);
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    size = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size >= 0) break;
    if (errno == ECONNRESET) throw_hung_up();
    if (errno != EINTR && errno != EAGAIN) throw_system("receiving from a hand-over socket");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      packet.descriptors.emplace_back(fd);
    }
  }
  if (size == 0) throw_hung_up();  // no rank sends an empty packet
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
    throw Error(ErrorCode::bootstrap,
                "a hand-over packet arrived cut off; the limit on open files (ulimit -n) may be too low");
  }
  packet.bytes.resize(static_cast<std::size_t>(size));
  return packet;
}

bool Channel::ready() const {
  pollfd entry{socket_.get(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

FileDescriptor Channel::peer_pidfd() const {
  // From Linux 6.5 on, the kernel gives this descriptor, so it cannot refer to a later process with the same
  // number.
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket_.get(), SOL_SOCKET, kPeerPidfd, &fd, &length) == 0) return FileDescriptor(fd);
  return open_pidfd(pid_);
}

Listener::Listener() : name_(base::text("vccl-", random_hex(16))), socket_(make_socket(SOCK_NONBLOCK)) {
  const Address address = abstract_address(name_);
  if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address.data), address.length) != 0) {
    throw_system("binding the hand-over socket");
  }
  if (listen(socket_.get(), kQueue) != 0) throw_system("listening on the hand-over socket");
}

std::vector<Channel> Listener::accept(std::size_t most) {
  std::vector<Channel> arrived;
  for (int i = 0; i < kQueue && arrived.size() < most; ++i) {
    FileDescriptor connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) {
      if (errno == EAGAIN) break;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      throw_system("accepting a hand-over connection");
    }
    if (const uid_t user = credentials(connection.get()).uid; user != geteuid()) {
      ++turned_away_;
      if (strangers_.size() < kNamedStrangers) strangers_.insert(user);
    } else {
      arrived.push_back(Channel(std::move(connection)));
    }
  }
  return arrived;
}

std::string Listener::turned_away_text() const {
  std::string users;
  for (const uid_t user : strangers_) users += base::text(users.empty() ? "" : ", ", user);
  return base::text("closed ", turned_away_, turned_away_ == 1 ? " connection" : " connections",
                    " of other users (uid ", users, ")");
}

void wait_for_any(const Listener& listener, std::span<const Channel* const> channels,
                  const Deadline& deadline) {
  std::vector<pollfd> entries{{listener.socket_.get(), POLLIN, 0}};
  for (const Channel* channel : channels) entries.push_back({channel->socket_.get(), POLLIN, 0});
  poll_until(entries, deadline);
}

}  // namespace vccl
