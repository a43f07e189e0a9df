// Encrypted, full-duplex connections to ranks on other hosts: a ZeroMQ socket and its monitor.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/deadline.hpp"
#include "transport/zmq_api.hpp"

namespace vccl {

/// Counts the frames that libzmq still reads from our memory, and keeps such memory as belongs to the link
/// itself.
class Borrowed {
 public:
  /// Frames lent and not yet given back.
  int count() const { return count_.load(std::memory_order_acquire); }
  std::vector<std::byte> memory;

 private:
  friend class ZmqSocket;
  std::atomic<int> count_{0};
};

/// Used under the mutex of its owner: ZeroMQ allows a socket to be used by several threads in turn, with a
/// fence between.
class ZmqSocket {
 public:
  /// `pair` and `dealer` have one peer: a pair listens or connects, a dealer connects to a router. A router
  /// listens for any number of peers and tells them apart by their routes.
  enum class Kind { pair, dealer, router };
  /// What became of a message: under way; no room at present; its route leads to nobody (any more).
  enum class Sent { yes, later, unreachable };

  struct Received {
    std::string route;  // routers only
    ZmqMessage control;
    std::optional<ZmqMessage> payload;
    bool excess = false;  // routers only: there were more frames, which were dropped
  };

  explicit ZmqSocket(Kind kind = Kind::pair);
  ~ZmqSocket() { close(Milliseconds(0)); }
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  /// Listens on a free port of `address`; returns the endpoint. Peers need public_key(), which is empty where
  /// this libzmq has no CURVE.
  std::string bind(const std::string& address);
  const std::string& public_key() const { return public_key_; }
  void connect(const std::string& endpoint, const std::string& server_key);

  /// False when there is no connection to send on (the peer has gone).
  bool send(const std::string& control);
  /// Sends `size` bytes at `data` behind the control frame without copying them; they have to stay as they
  /// are until the peer says that it has them, or borrowed().count() is 0.
  bool send(const std::string& control, const std::byte* data, std::size_t size);
  /// Sends the control frame and, when there is one, the payload, which is taken if the message is under way
  /// and left alone if not. `route`: of a router.
  Sent post(const std::string& route, const std::string& control, ZmqMessage* payload = nullptr);
  /// A frame of `size` bytes at `data`, which are copied if they are few. Otherwise they have to stay as
  /// send() says.
  ZmqMessage lend(const std::byte* data, std::size_t size);
  /// The next message, if there is one. Throws Error(protocol) for one with too many frames, unless this is a
  /// router, which strangers may reach.
  std::optional<Received> receive();
  /// Whether a message has come. Sending may have noticed that, after which data_descriptor() is silent.
  bool readable();
  /// Whether the connection has ended. What came before it may still have to be received.
  bool disconnected();
  /// A router tells of connections that end from here on, others from the start. Whoever asked for that has
  /// to call hung_up() now and then: libzmq stops when some thousand ends were not taken note of.
  void monitor();
  /// Whether any connection has ended, or could not be made (dealers), since this was last asked.
  bool hung_up();
  /// Whether that was because nobody let it in (dealers).
  bool refused() const { return refused_; }

  /// Ends the connection; what was sent goes out for at most `linger`. Idempotent.
  void close(Milliseconds linger) noexcept;
  bool closed() const { return socket_ == nullptr; }
  const std::shared_ptr<Borrowed>& borrowed() const { return borrowed_; }
  /// What becomes readable when there is something to receive or report.
  ZmqPollItem data_item() const { return {socket_, 0, zmq_constant::kPollIn, 0}; }
  ZmqPollItem monitor_item() const { return {monitor_, 0, zmq_constant::kPollIn, 0}; }
  /// The same for poll() and epoll: readable until receive(), or hung_up(), has found nothing more.
  int data_descriptor() const { return descriptor(socket_); }
  int monitor_descriptor() const { return descriptor(monitor_); }

 private:
  template <class T>
  void set(int option, T value);
  void set_keys(bool server, const std::string& server_key);
  static int descriptor(void* socket);
  int events();

  const Kind kind_;
  std::shared_ptr<ZmqContext> context_;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
  bool bound_ = false;
  bool disconnected_ = false;
  bool ended_ = false;    // a connection, or the attempt to make one
  bool refused_ = false;  // the first of these
  std::string public_key_;
  std::shared_ptr<Borrowed> borrowed_ = std::make_shared<Borrowed>();
};

}  // namespace vccl
