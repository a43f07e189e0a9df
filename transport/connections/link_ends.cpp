#include "transport/connections/link_ends.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <map>
#include <mutex>
#include <utility>

#include "base/fork.hpp"
#include "base/text.hpp"
#include "transport/connections/connection_guard.hpp"

namespace vccl {
namespace {

struct All {
  std::mutex mutex;
  std::map<std::string, int> here, there;  // how many objects have made an address and port known
};

All& all() {
  static base::OnePerProcess<All> one;
  return one.get();
}

std::map<std::string, int>& side_of(LinkEnd::Side side) {
  return side == LinkEnd::Side::here ? all().here : all().there;
}

/// Returns "10.0.0.7 40001", or an empty text.
std::string place_of(const std::string& endpoint) {
  const auto place = host_and_port(endpoint);
  return place ? base::text(place->first, " ", place->second) : "";
}

std::string place_of(const sockaddr* address, socklen_t size) {
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return "";
  char host[NI_MAXHOST], port[NI_MAXSERV];
  constexpr int kNumbers = NI_NUMERICHOST | NI_NUMERICSERV;
  if (getnameinfo(address, size, host, sizeof host, port, sizeof port, kNumbers) != 0) return "";
  return base::text(host, " ", port);
}

/// `which` is getsockname or getpeername.
std::string place_of(int descriptor, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const common = reinterpret_cast<sockaddr*>(&address);
  return which(descriptor, common, &size) == 0 ? place_of(common, size) : "";
}

bool is_known(LinkEnd::Side side, const std::string& place) {
  std::lock_guard lock(all().mutex);
  return side_of(side).contains(place);
}

bool is_listening(int descriptor) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0;
}

}  // namespace

LinkEnd::LinkEnd(Side side, const std::string& endpoint) : side_(side), place_(place_of(endpoint)) {
  if (place_.empty()) return;
  std::lock_guard lock(all().mutex);
  ++side_of(side_)[place_];
}

LinkEnd::LinkEnd(LinkEnd&& other) noexcept
    : side_(other.side_), place_(std::exchange(other.place_, std::string())) {}

LinkEnd& LinkEnd::operator=(LinkEnd&& other) noexcept {
  std::swap(side_, other.side_);
  std::swap(place_, other.place_);
  return *this;
}

LinkEnd::~LinkEnd() {
  if (place_.empty()) return;
  std::lock_guard lock(all().mutex);
  const auto found = side_of(side_).find(place_);
  if (found == side_of(side_).end()) return;  // this is a forked child, and its parent knows the endpoint
  if (--found->second == 0) side_of(side_).erase(found);
}

bool LinkEnd::any() noexcept {
  std::lock_guard lock(all().mutex);
  return !all().here.empty() || !all().there.empty();
}

bool LinkEnd::is_of(int descriptor) noexcept {
  try {
    if (is_known(Side::there, place_of(descriptor, &getpeername))) return true;
    return is_known(Side::here, place_of(descriptor, &getsockname)) && !is_listening(descriptor);
  } catch (const std::exception&) {  // there is no memory
    return false;
  }
}

bool LinkEnd::listens(int descriptor) noexcept {
  try {
    return is_known(Side::here, place_of(descriptor, &getsockname)) && is_listening(descriptor);
  } catch (const std::exception&) {
    return false;
  }
}

bool LinkEnd::is_peer(const sockaddr* address, socklen_t size) noexcept {
  try {
    return is_known(Side::there, place_of(address, size));
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace vccl
