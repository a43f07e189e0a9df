// One encrypted, full-duplex connection to one rank on another host: a ZeroMQ PAIR socket and its monitor.
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
  struct Received {
    ZmqMessage control;
    std::optional<ZmqMessage> payload;
  };

  ZmqSocket();
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
  /// The next message, if there is one. Throws Error(protocol) for one with too many frames.
  std::optional<Received> receive();
  /// Whether the connection has ended. What came before it may still have to be received.
  bool disconnected();

  /// Ends the connection; what was sent goes out for at most `linger`. Idempotent.
  void close(Milliseconds linger) noexcept;
  bool closed() const { return socket_ == nullptr; }
  const std::shared_ptr<Borrowed>& borrowed() const { return borrowed_; }
  /// What becomes readable when there is something to receive or report.
  ZmqPollItem data_item() const { return {socket_, 0, zmq_constant::kPollIn, 0}; }
  ZmqPollItem monitor_item() const { return {monitor_, 0, zmq_constant::kPollIn, 0}; }

 private:
  template <class T>
  void set(int option, T value);
  void set_keys(bool server, const std::string& server_key);

  std::shared_ptr<ZmqContext> context_;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
  bool bound_ = false;
  bool disconnected_ = false;
  std::string public_key_;
  std::shared_ptr<Borrowed> borrowed_ = std::make_shared<Borrowed>();
};

}  // namespace vccl
