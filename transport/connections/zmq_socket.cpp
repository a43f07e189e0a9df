#include "transport/connections/zmq_socket.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/system_calls.hpp"
#include "base/text.hpp"
#include "transport/communicator.hpp"
#include "transport/messages.hpp"
#include "transport/system/descriptor_limit.hpp"
#include "transport/system/machine.hpp"

namespace vccl {
namespace {

using namespace zmq_constant;

// If a peer's process ends, its connection ends at once. The heartbeats are for a host that lost power or
// network, and for a process that was stopped. A ping goes out kPings times within the silence that is
// allowed, and the connection ends if nothing has come for kPatience of these periods after one. This adds up
// to 0.7 of the silence. What is left is for making the connection again (resumption.hpp), and for those who
// pass the news on. A heartbeat cannot go out while the system takes no more data. So a connection also ends
// if what was sent stays unconfirmed for as long.
constexpr int kPings = 20, kPatience = 13;
// A connection for blocks has no heartbeats: one would wait behind the blocks on a slow link. The connection
// for control messages beside it has them. The system's own probes only keep firewalls and routers from
// forgetting the connection.
constexpr int kKeepaliveSeconds = 60;
constexpr std::int64_t kLargestMessage = Communicator::kBlockBytes + 64 * 1024;
// libzmq keeps any number of messages that came in. With a bound it stops to read from a connection that has
// reached it, and then hears no heartbeat and takes a peer for lost that only waits. Worse, libzmq (4.3.5)
// ends the process if the connection breaks meanwhile: the next heartbeat, or a ping among what it has read
// already, meets "Assertion failed: !_io_error". The protocols of the links bound what a rank sends ahead,
// and the guard bounds what others send (connection_guard.hpp).
constexpr int kNoBound = 0;

// libzmq is not built with the thread sanitizer, so the sanitizer does not see how its threads order their
// use of frames. These calls tell the sanitizer.
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

// An option of 0 or less would make libzmq drop what has arrived when the connection ends.
constexpr int kNever = 3'600'000;  // milliseconds

// libzmq's threads shake hands, however busy the ranks are, and there are no heartbeats before. So a
// handshake that takes as long as a heartbeat may take is one whose connection has ended for the other end
// only. This is libzmq's own limit, which stays that of listeners.
constexpr int kLongestHandshake = 30'000;  // milliseconds

// A refused connection is reported as the end of an attempt (closed), not as a disconnection.
constexpr int kConnectionEvents = kEventConnected | kEventDisconnected | kEventClosed;
// kEventHandshakeProtocol is in neither list. libzmq (4.3.5) reports it also when it cannot decipher what has
// come, before it looks at errno, and the report itself can leave EAGAIN there. libzmq then does not end the
// connection but stops to read from it, as if a bound were reached (kNoBound says what comes of that).
constexpr int kListenerEvents = kEventAccepted | kEventDisconnected | kEventHandshakeSucceeded |
                                kEventHandshakeEnded | kEventHandshakeDenied;

int type_of(ZmqSocket::Kind kind) {
  switch (kind) {
    case ZmqSocket::Kind::host:
    case ZmqSocket::Kind::router:
      return kRouter;
    case ZmqSocket::Kind::push:
      return kPush;
    case ZmqSocket::Kind::pull:
      return kPull;
    default:
      return kDealer;
  }
}

constexpr std::size_t kKeyText = 41;  // 40 characters of Z85 and a zero

}  // namespace

/// Keeps the counter, and the memory beside it, until libzmq's thread has given a frame back. That may be
/// after the link is gone.
struct ZmqSocket::Loan {
  std::shared_ptr<Borrowed> borrowed;
  std::string bytes;  // of a frame that owns what it lends

  /// Returns the frame, which deletes this object when it is given back.
  ZmqMessage frame(void* data, std::size_t size) {
    borrowed->count_.fetch_add(1, std::memory_order_relaxed);
    handed_over(this);
    const auto give_back = [](void*, void* hint) {
      taken_over(hint);
      const std::unique_ptr<Loan> loan(static_cast<Loan*>(hint));
      // This pairs with count(): a thread that sees the lower count may write where libzmq has read.
      loan->borrowed->count_.fetch_sub(1, std::memory_order_release);
    };
    return ZmqMessage(data, size, +give_back, this);
  }
};

template <class T>
void ZmqSocket::set(int option, T value) {
  if (zmq_api().setsockopt(socket_, option, &value, sizeof value) != 0) throw_zmq("zmq_setsockopt");
}

ZmqSocket::ZmqSocket(Kind kind, Milliseconds silence, std::shared_ptr<Borrowed> borrowed)
    : kind_(kind),
      period_(static_cast<int>(silence.count()) / kPings),
      patience_(kPatience * period_),
      context_(ZmqContext::acquire()),
      borrowed_(borrowed ? std::move(borrowed) : std::make_shared<Borrowed>()) {
  const ZmqApi& api = zmq_api();
  require_descriptors(kListeningDescriptors + 1, "a link between hosts and its connection");
  socket_ = api.socket(context_->get(), type_of(kind));
  if (!socket_) throw_zmq("zmq_socket");
  try {
    set(kLinger, 0);
    set(kMaxMessageSize, kLargestMessage);
    if (!has_heartbeats()) {
      set(kKeepalive, 1);
      set(kKeepaliveIdle, kKeepaliveSeconds);
    } else {
      set(kHeartbeatInterval, period_);
      set(kHeartbeatTimeout, patience_);
    }
    // Without this, a router drops a message whose route leads nowhere, and reports no error.
    if (has_routes()) set(kRouterMandatory, 1);
    set(kReceiveMark, kNoBound);
    // A dealer's owner watches its monitor from the beginning.
    if (kind == Kind::dealer) monitor_ = make_monitor(kConnectionEvents);
  } catch (...) {
    close(Milliseconds(0));
    throw;
  }
}

/// Returns the socket on which libzmq reports these events.
void* ZmqSocket::make_monitor(int events) {
  const ZmqApi& api = zmq_api();
  const std::string endpoint = base::text("inproc://vccl-monitor-", random_hex(8));
  if (api.socket_monitor(socket_, endpoint.c_str(), events) != 0) throw_zmq("zmq_socket_monitor");
  void* monitor = api.socket(context_->get(), kPair);
  if (!monitor) throw_zmq("zmq_socket");
  if (api.connect(monitor, endpoint.c_str()) == 0) return monitor;
  api.close(monitor);
  throw_zmq("watching a link");
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

std::byte* Borrowed::slot(std::uint64_t number, std::size_t slots, std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  if (memory_.empty()) memory_.resize(slots * bytes + kAlignment);
  const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
  const std::size_t padding = (kAlignment - start % kAlignment) % kAlignment;
  return memory_.data() + padding + (number % slots) * bytes;
}

std::string ZmqSocket::bind(const std::string& address, const PortRange& ports, std::size_t ranks,
                            const Log& log) {
  const ZmqApi& api = zmq_api();
  if (kind_ != Kind::pull && api.has("curve")) {
    set_keys(true, "");
  } else if (kind_ != Kind::pull) {
    log.warn(base::text("the libzmq in use has no CURVE: what comes in at ", address, " is not encrypted"));
  }
  auto listener = std::make_shared<WatchedListener>();
  listener->ends = FileDescriptor(base::make_event_counter());
  if (!listener->ends) throw_system("eventfd");
  listener->limit = listener->places = ranks + kStrangers;
  listener->reopens = kind_ == Kind::host;     // the rank that connects may come again
  listener->makes_room = kind_ == Kind::pull;  // others have to pass a handshake within a time
  listener->log = log;
  FileDescriptor listening = listen_at(address, ports);
  tune_connection(listening.get(), patience_);
  set(kUseDescriptor, listening.get());
  listener->monitor = make_monitor(kListenerEvents);
  listener_ = listener;
  // The descriptor has the address already. libzmq only checks that this one is well-formed.
  if (api.bind(socket_, base::text("tcp://", address, ":*").c_str()) != 0)
    throw_zmq(base::text("listening at ", address));
  listener->listening = listening.release();
  char bound[256];
  std::size_t size = sizeof bound;
  if (api.getsockopt(socket_, kLastEndpoint, bound, &size) != 0) throw_zmq("zmq_getsockopt");
  listener->endpoint = bound;
  end_ = LinkEnd(LinkEnd::Side::here, bound);
  context_->connection_guard().attend(listener);
  return bound;
}

void ZmqSocket::shut(const ZmqMessage* rank) {
  if (listener_ && !closed())
    context_->connection_guard().shut(*listener_, rank ? rank->connection() : std::nullopt);
}

void ZmqSocket::end_proven() {
  if (listener_ && !closed()) context_->connection_guard().end_proven(*listener_);
}

void ZmqSocket::reopen() {
  if (listener_ && !closed()) context_->connection_guard().reopen(*listener_);
}

void ZmqSocket::connect(const std::string& endpoint, const std::string& server_key, bool once) {
  if (once) set(kReconnectInterval, kNever);
  set(kHandshakeTime, std::min(patience_, kLongestHandshake));
  if (!server_key.empty()) set_keys(false, server_key);
  if (endpoint.find('[') != std::string::npos) set(kIpv6, 1);
  if (!monitor_) monitor_ = make_monitor(kConnectionEvents);
  end_ = LinkEnd(LinkEnd::Side::there, endpoint);
  if (zmq_api().connect(socket_, endpoint.c_str()) != 0) throw_zmq(base::text("connecting to ", endpoint));
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
  ZmqMessage frame(control);
  return post_frames(route, frame, payload);
}

ZmqSocket::Sent ZmqSocket::post_last(const std::string& route, const std::string& control) {
  auto* loan = new Loan{borrowed_, control};
  ZmqMessage frame = loan->frame(loan->bytes.data(), loan->bytes.size());
  return post_frames(route, frame, nullptr);
}

ZmqSocket::Sent ZmqSocket::post_frames(const std::string& route, ZmqMessage& frame, ZmqMessage* payload) {
  const ZmqApi& api = zmq_api();
  std::optional<ZmqMessage> first;
  if (has_routes()) first.emplace(route);
  const int more = payload ? kSendMore : 0;
  const int sent = first ? api.msg_send(first->raw(), socket_, kDontWait | kSendMore)
                         : api.msg_send(frame.raw(), socket_, kDontWait | more);
  if (sent < 0) {
    if (api.error() == EAGAIN) return Sent::later;
    if (first && api.error() == EHOSTUNREACH) return Sent::unreachable;
    throw_zmq("sending on a link");
  }
  // If the first frame was accepted, the others are too: libzmq sends a message whole or not at all.
  if (first && api.msg_send(frame.raw(), socket_, kDontWait | more) < 0) throw_zmq("sending on a link");
  if (payload && api.msg_send(payload->raw(), socket_, kDontWait) < 0) throw_zmq("sending on a link");
  return Sent::yes;
}

ZmqMessage ZmqSocket::lend(const std::byte* data, std::size_t size) {
  if (size <= kCopied) return ZmqMessage(std::string(reinterpret_cast<const char*>(data), size));
  return (new Loan{borrowed_, {}})->frame(const_cast<std::byte*>(data), size);
}

std::optional<ZmqSocket::Received> ZmqSocket::receive() {
  if (closed()) return std::nullopt;
  const ZmqApi& api = zmq_api();
  // The frames of a message arrive together, so the frames after the first need no wait.
  const auto next = [&](ZmqMessage& frame) {
    if (api.msg_recv(frame.raw(), socket_, kDontWait) < 0) throw_zmq("receiving on a link");
  };
  Received received;
  if (api.msg_recv(received.control.raw(), socket_, kDontWait) < 0) {
    if (api.error() == EAGAIN || api.error() == EINTR) return std::nullopt;
    throw_zmq("receiving on a link");
  }
  if (has_routes()) {
    received.route.assign(reinterpret_cast<const char*>(received.control.data()), received.control.size());
    if (api.msg_more(received.control.raw())) next(received.control);
    if (kind_ == Kind::router) received.address = received.control.sender();
  }
  if (!api.msg_more(received.control.raw())) return received;
  received.payload.emplace();
  next(*received.payload);
  if (!api.msg_more(received.payload->raw())) return received;
  ZmqMessage rest;
  do next(rest);
  while (api.msg_more(rest.raw()));
  if (!has_routes() && kind_ != Kind::pull) {
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
  if (listener_) {
    eventfd_t ends = 0;
    return eventfd_read(listener_->ends.get(), &ends) == 0;
  }
  if (!monitor_) return false;
  ZmqMessage frame;
  bool any = false;
  // An event has two frames: {number, value}, and the endpoint.
  while (zmq_api().msg_recv(frame.raw(), monitor_, kDontWait) >= 0) {
    std::uint16_t event = 0;
    std::int32_t value = 0;
    if (!zmq_api().msg_more(frame.raw()) || frame.size() != sizeof event + sizeof value) continue;
    std::memcpy(&event, frame.data(), sizeof event);
    std::memcpy(&value, frame.data() + sizeof event, sizeof value);
    any |= read_event(event, value);
  }
  return any;
}

/// Returns whether this is the end of the connection, or of a dealer's attempt.
bool ZmqSocket::read_event(int event, int value) {
  if (event == kEventConnected) {
    connected_ = true;
    refused_ = false;
    connection_ = value;
    tune_connection(value, patience_);
    return false;
  }
  if (event == kEventDisconnected) connection_ = -1;
  if (event == kEventClosed && !connected_) refused_ = true;
  return event == kEventDisconnected || kind_ == Kind::dealer;
}

bool ZmqSocket::disconnected() {
  disconnected_ |= hung_up();
  if (!disconnected_ || !listener_ || closed()) return disconnected_;
  // A listening socket also reports strangers that hung up (a port scanner) without having passed the
  // handshake. Only if the peer itself has gone can the socket not send any more.
  return !(events() & kPollOut);
}

}  // namespace vccl
