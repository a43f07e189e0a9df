#include "transport/zmq_socket.hpp"

#include <cerrno>
#include <cstring>

#include "transport/communicator.hpp"
#include "transport/host.hpp"

namespace vccl {
namespace {

using namespace zmq_constant;

// A peer whose process ends is seen at once, by the end of its connection. These are for a host that lost
// power or network: nothing heard for the timeout, though asked every interval.
constexpr int kHeartbeatMilliseconds = 2'000;
constexpr int kSilenceMilliseconds = 10'000;
constexpr std::int64_t kLargestMessage = Communicator::kBlockBytes + 64 * 1024;
// Up to here a copy costs less than lending the memory.
constexpr std::size_t kCopied = 1024;

// libzmq is not built with the sanitizer, which therefore does not see that its threads hand frames over in
// order.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_release(void*);
extern "C" void __tsan_acquire(void*);
void handed_over(void* hint) {
  __tsan_release(hint);
}
void taken_over(void* hint) {
  __tsan_acquire(hint);
}
#else
void handed_over(void*) {}
void taken_over(void*) {}
#endif

int type_of(ZmqSocket::Kind kind) {
  switch (kind) {
    case ZmqSocket::Kind::dealer:
      return kDealer;
    case ZmqSocket::Kind::router:
      return kRouter;
    default:
      return kPair;
  }
}

constexpr std::size_t kKeyText = 41;  // 40 characters of Z85 and a zero

}  // namespace

template <class T>
void ZmqSocket::set(int option, T value) {
  if (zmq_api().setsockopt(socket_, option, &value, sizeof value) != 0) throw_zmq("zmq_setsockopt");
}

ZmqSocket::ZmqSocket(Kind kind) : kind_(kind), context_(ZmqContext::acquire()) {
  const ZmqApi& api = zmq_api();
  socket_ = api.socket(context_->get(), type_of(kind));
  if (!socket_) throw_zmq("zmq_socket");
  try {
    set(kLinger, 0);
    set(kMaxMessageSize, kLargestMessage);
    set(kHeartbeatInterval, kHeartbeatMilliseconds);
    set(kHeartbeatTimeout, kSilenceMilliseconds);
    set(kHeartbeatTimeToLive, kSilenceMilliseconds);
    // Otherwise a router drops what it has no route for, and nobody hears of it.
    if (kind == Kind::router) set(kRouterMandatory, 1);
    if (kind != Kind::router) monitor();
  } catch (...) {
    close(Milliseconds(0));
    throw;
  }
}

void ZmqSocket::monitor() {
  const ZmqApi& api = zmq_api();
  // A connection that is refused is no disconnection, but the end of an attempt.
  const int ends = kEventDisconnected | (kind_ == Kind::dealer ? kEventClosed : 0);
  const std::string events = "inproc://vccl-monitor-" + random_hex(8);
  if (api.socket_monitor(socket_, events.c_str(), ends) != 0) throw_zmq("zmq_socket_monitor");
  monitor_ = api.socket(context_->get(), kPair);
  if (!monitor_ || api.connect(monitor_, events.c_str()) != 0) throw_zmq("watching a link");
}

void ZmqSocket::set_keys(bool server, const std::string& server_key) {
  const ZmqApi& api = zmq_api();
  char public_key[kKeyText], secret_key[kKeyText];
  if (api.curve_keypair(public_key, secret_key) != 0) throw_zmq("zmq_curve_keypair");
  if (server) {
    set(kCurveServer, 1);
    public_key_ = public_key;
  } else {
    api.setsockopt(socket_, kCurvePublicKey, public_key, kKeyText);
    if (api.setsockopt(socket_, kCurveServerKey, server_key.c_str(), server_key.size() + 1) != 0) {
      throw_zmq("a peer's CURVE key");
    }
  }
  if (api.setsockopt(socket_, kCurveSecretKey, secret_key, kKeyText) != 0) throw_zmq("a CURVE key");
}

std::string ZmqSocket::bind(const std::string& address) {
  const ZmqApi& api = zmq_api();
  if (api.has("curve")) set_keys(true, "");
  if (address.starts_with('[')) set(kIpv6, 1);
  const std::string endpoint = "tcp://" + address + ":*";
  if (api.bind(socket_, endpoint.c_str()) != 0) throw_zmq("listening on " + endpoint);
  char bound[256];
  std::size_t size = sizeof bound;
  if (api.getsockopt(socket_, kLastEndpoint, bound, &size) != 0) throw_zmq("zmq_getsockopt");
  bound_ = true;
  return bound;
}

void ZmqSocket::connect(const std::string& endpoint, const std::string& server_key) {
  if (!server_key.empty()) set_keys(false, server_key);
  if (endpoint.find('[') != std::string::npos) set(kIpv6, 1);
  if (zmq_api().connect(socket_, endpoint.c_str()) != 0) throw_zmq("connecting to " + endpoint);
}

bool ZmqSocket::send(const std::string& control) {
  return !closed() && post({}, control) == Sent::yes;
}

bool ZmqSocket::send(const std::string& control, const std::byte* data, std::size_t size) {
  if (closed()) return false;
  ZmqMessage payload = lend(data, size);
  return post({}, control, &payload) == Sent::yes;
}

ZmqSocket::Sent ZmqSocket::post(const std::string& route, const std::string& control, ZmqMessage* payload) {
  const ZmqApi& api = zmq_api();
  ZmqMessage frame(control);
  std::optional<ZmqMessage> first;
  if (kind_ == Kind::router) first.emplace(route);
  const int more = payload ? kSendMore : 0;
  const int sent = first ? api.msg_send(first->raw(), socket_, kDontWait | kSendMore)
                         : api.msg_send(frame.raw(), socket_, kDontWait | more);
  if (sent < 0) {
    if (api.error() == EAGAIN) return Sent::later;
    if (first && api.error() == EHOSTUNREACH) return Sent::unreachable;
    throw_zmq("sending on a link");
  }
  // The first frame was accepted, so the others are: a message goes whole or not at all.
  if (first && api.msg_send(frame.raw(), socket_, kDontWait | more) < 0) throw_zmq("sending on a link");
  if (payload && api.msg_send(payload->raw(), socket_, kDontWait) < 0) throw_zmq("sending on a link");
  return Sent::yes;
}

ZmqMessage ZmqSocket::lend(const std::byte* data, std::size_t size) {
  if (size <= kCopied) return ZmqMessage(std::string(reinterpret_cast<const char*>(data), size));
  // The hint keeps the counter (and the memory in it) until libzmq's thread has given this frame back, which
  // may be after the link is gone.
  auto* hint = new std::shared_ptr<Borrowed>(borrowed_);
  borrowed_->count_.fetch_add(1, std::memory_order_relaxed);
  handed_over(hint);
  const auto give_back = [](void*, void* owner) {
    taken_over(owner);
    auto* borrowed = static_cast<std::shared_ptr<Borrowed>*>(owner);
    // Pairs with count(): whoever sees the count fall may write where libzmq read.
    (*borrowed)->count_.fetch_sub(1, std::memory_order_release);
    delete borrowed;
  };
  return ZmqMessage(const_cast<std::byte*>(data), size, +give_back, hint);
}

std::optional<ZmqSocket::Received> ZmqSocket::receive() {
  if (closed()) return std::nullopt;
  const ZmqApi& api = zmq_api();
  // The frames of one message come together: after the first, there is no waiting for another.
  const auto next = [&](ZmqMessage& frame) {
    if (api.msg_recv(frame.raw(), socket_, kDontWait) < 0) throw_zmq("receiving on a link");
  };
  Received received;
  if (api.msg_recv(received.control.raw(), socket_, kDontWait) < 0) {
    if (api.error() == EAGAIN || api.error() == EINTR) return std::nullopt;
    throw_zmq("receiving on a link");
  }
  if (kind_ == Kind::router) {
    received.route.assign(reinterpret_cast<const char*>(received.control.data()), received.control.size());
    if (api.msg_more(received.control.raw())) next(received.control);
  }
  if (!api.msg_more(received.control.raw())) return received;
  received.payload.emplace();
  next(*received.payload);
  if (!api.msg_more(received.payload->raw())) return received;
  ZmqMessage rest;
  do next(rest);
  while (api.msg_more(rest.raw()));
  if (kind_ != Kind::router) {
    throw Error(ErrorCode::protocol, "a message of more than two frames came from another host");
  }
  received.excess = true;
  return received;
}

int ZmqSocket::descriptor(void* socket) {
  int number = -1;
  std::size_t size = sizeof number;
  if (zmq_api().getsockopt(socket, kDescriptor, &number, &size) != 0) throw_zmq("zmq_getsockopt");
  return number;
}

int ZmqSocket::events() {
  int events = 0;
  std::size_t size = sizeof events;
  if (zmq_api().getsockopt(socket_, kEvents, &events, &size) != 0) throw_zmq("zmq_getsockopt");
  return events;
}

bool ZmqSocket::readable() {
  return !closed() && (events() & kPollIn);
}

bool ZmqSocket::hung_up() {
  if (closed()) return true;
  if (!monitor_) return false;
  ZmqMessage frame;
  bool any = false;
  // An event is two frames, of which the first says which it is; the monitor asks for no other kinds.
  while (zmq_api().msg_recv(frame.raw(), monitor_, kDontWait) >= 0) {
    std::uint16_t event = 0;
    if (!zmq_api().msg_more(frame.raw())) continue;
    if (frame.size() >= sizeof event) std::memcpy(&event, frame.data(), sizeof event);
    if (!std::exchange(ended_, true)) refused_ = event == kEventClosed;
    any = true;
  }
  return any;
}

bool ZmqSocket::disconnected() {
  disconnected_ |= hung_up();
  if (!disconnected_ || !bound_ || closed()) return disconnected_;
  // A listening socket also reports strangers that hung up (a port scanner), who never got past the
  // handshake. Only when the peer itself has gone is there nobody left to send to.
  return !(events() & kPollOut);
}

void ZmqSocket::close(Milliseconds linger) noexcept {
  if (!socket_) return;
  const ZmqApi& api = zmq_api();
  const int milliseconds = static_cast<int>(linger.count());
  api.setsockopt(socket_, kLinger, &milliseconds, sizeof milliseconds);
  api.socket_monitor(socket_, nullptr, 0);
  api.close(socket_);
  const int none = 0;
  if (monitor_) {
    api.setsockopt(monitor_, kLinger, &none, sizeof none);
    api.close(monitor_);
  }
  socket_ = monitor_ = nullptr;
}

}  // namespace vccl
