// Connections to ranks on other hosts: a ZeroMQ socket and its monitor. If libzmq has CURVE, it encrypts all
// connections but those of kind push and pull, whose owner protects the bytes itself. Without CURVE all
// connections are in plain text, and every listening socket logs a warning.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/connections/connection_guard.hpp"
#include "transport/connections/link_ends.hpp"
#include "transport/connections/link_settings.hpp"
#include "transport/connections/zmq_api.hpp"
#include "transport/deadline.hpp"

namespace vccl {

/// Counts the frames that libzmq still reads from this rank's memory, and owns the slots that belong to the
/// link itself.
class Borrowed {
 public:
  /// Returns how many frames were lent and not given back yet.
  int count() const { return count_.load(std::memory_order_acquire); }
  /// Returns slot `number % slots`, of `bytes` bytes, aligned to a cache line. Every call has the same
  /// `slots` and `bytes`. The slots live as long as libzmq reads from them, which may be longer than the link
  /// lives.
  std::byte* slot(std::uint64_t number, std::size_t slots, std::size_t bytes);

 private:
  friend class ZmqSocket;
  std::vector<std::byte> memory_;
  std::atomic<int> count_{0};
};

/// Use a socket only under the mutex of its owner. ZeroMQ allows several threads to use a socket in turn if a
/// fence separates them.
class ZmqSocket {
 public:
  /// A `pair` and a `dealer` have one peer. A pair connects to a host or a pair, or listens for a pair, and a
  /// dealer connects to a router. A router listens for any number of peers and tells them apart by their
  /// routes. A `host` does the same for the connections that one pair makes in the course of time. These are
  /// full-duplex and encrypted. A push connects to a pull and only sends, in plain text. A pull listens and
  /// only receives, from everybody who connects.
  enum class Kind { pair, host, dealer, router, push, pull };
  /// What became of a message: it is under way; there is no room at present; its route leads to no peer (any
  /// more).
  enum class Sent { yes, later, unreachable };

  struct Received {
    std::string route;    // routers and hosts only
    std::string address;  // routers only: the address of the other end
    ZmqMessage control;
    std::optional<ZmqMessage> payload;
    bool excess = false;  // routers, hosts and pulls only: there were further frames, which were dropped
  };

  /// The number of descriptors that a socket takes when it listens, without its connections, and when it
  /// connects, with its connection. kStrangers is how many connections a listening socket holds beside those
  /// of ranks.
  static constexpr std::size_t kListeningDescriptors = 5, kConnectingDescriptors = 4, kStrangers = 16;
  /// Up to this size, in bytes, a payload is copied: that costs less than lending the memory.
  static constexpr std::size_t kCopied = 1024;

  /// If nothing was heard of a peer for `silence`, or a little less, its connection ends. A push and a pull
  /// notice this only while something is under way. Throws Error(system), also if libzmq would run out of
  /// descriptors. `borrowed` belongs to a socket whose place this socket takes.
  explicit ZmqSocket(Kind kind = Kind::pair, Milliseconds silence = LinkSettings().silence,
                     std::shared_ptr<Borrowed> borrowed = nullptr);
  ~ZmqSocket() { close(Milliseconds(0)); }
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  /// Listens at `address` on a free port of `ports`, and returns the endpoint. Peers need public_key(), which
  /// is empty for a pull and if this libzmq has no CURVE. `ranks` peers may connect, and at most kStrangers
  /// others at a time. `log` reports others when they have been turned away. While there are more
  /// connections, further ones are refused. A pull, which has no handshake that tells who is
  /// a rank, then also ends the connection that is open for longest.
  std::string bind(const std::string& address, const PortRange& ports, std::size_t ranks, const Log& log);
  /// Refuses all further connections, in a host until one of them ends. Existing connections stay. A pull
  /// ends all of them but the one that `rank` came over: others could make memory grow there.
  void shut(const ZmqMessage* rank = nullptr);
  /// Ends the connection that `rank` of shut() came over.
  void end_proven();
  /// Lets connections in again after shut().
  void reopen();
  const std::string& public_key() const { return public_key_; }
  /// Connects. If `once`, libzmq does not connect anew when an attempt is refused or the connection ends: the
  /// owner makes another socket instead, and says first who it is.
  void connect(const std::string& endpoint, const std::string& server_key, bool once = false);

  /// Sends a control frame. Returns false if there is no connection (the peer has gone).
  bool send(const std::string& control);
  /// Sends a control frame and, behind it, `size` bytes at `data` without a copy. The bytes must not change
  /// until the peer says that it has read them, or until borrowed().count() is 0.
  bool send(const std::string& control, const std::byte* data, std::size_t size);
  /// Sends the control frame and, if it is not null, the payload. The payload is taken if the message is
  /// under way, and left alone otherwise. `route` is used by routers only.
  Sent post(const std::string& route, const std::string& control, ZmqMessage* payload = nullptr);
  /// Sends the last message on this connection, or to this route: close() lets it go out before the end.
  Sent post_last(const std::string& route, const std::string& control);
  /// Returns a frame of `size` bytes at `data`. A few bytes are copied. More bytes must not change for as
  /// long as those of send().
  ZmqMessage lend(const std::byte* data, std::size_t size);
  /// Returns the next message, if there is one. Throws Error(protocol) for a message with too many frames,
  /// unless this is a router or a pull, which strangers can reach.
  std::optional<Received> receive();
  /// Returns whether a message has arrived. Call this after sending too: a send may have noticed the message,
  /// and data_descriptor() then stays silent.
  bool readable();
  /// Returns whether the connection has ended. Messages that arrived before that may still have to be
  /// received.
  bool disconnected();
  /// Returns whether some connection has ended before, so that disconnected() may become true without a
  /// further event.
  bool suspicious() const { return disconnected_; }
  /// Returns whether any connection has ended, or a dealer's could not be made, since the last call.
  bool hung_up();
  /// For sockets that connect: returns whether the connection has been made, and whether attempts to make it
  /// were refused. A dealer's first refusal ends it, and others try again.
  bool connected() const { return connected_; }
  bool refused() const { return refused_; }

  /// Ends the connections. What was lent, and post_last(), goes out for at most `linger`, with everything
  /// before it. Blocks until then, but for a push and a pull, which end later by themselves. Further calls do
  /// nothing.
  void close(Milliseconds linger) noexcept;
  bool closed() const { return socket_ == nullptr; }
  const std::shared_ptr<Borrowed>& borrowed() const { return borrowed_; }
  /// Return what becomes readable when there is something to receive, or to report. The descriptor is
  /// readable until receive(), or hung_up(), has found nothing more.
  int data_descriptor() const { return descriptor(socket_); }
  int monitor_descriptor() const { return listener_ ? listener_->ends.get() : descriptor(monitor_); }

 private:
  struct Loan;
  bool has_routes() const { return kind_ == Kind::router || kind_ == Kind::host; }
  template <class T>
  void set(int option, T value);
  void set_keys(bool server, const std::string& server_key);
  void* make_monitor(int events);
  bool has_heartbeats() const { return kind_ != Kind::push && kind_ != Kind::pull; }
  Sent post_frames(const std::string& route, ZmqMessage& frame, ZmqMessage* payload);
  bool has_connection();
  void end_connections(Milliseconds linger);
  bool read_event(int event, int value);
  static int descriptor(void* socket);
  int events();

  const Kind kind_;
  const int period_;    // of heartbeats, in milliseconds
  const int patience_;  // for a heartbeat and for a confirmation of the system, in milliseconds
  std::shared_ptr<ZmqContext> context_;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;                    // set if this socket connects
  std::shared_ptr<WatchedListener> listener_;  // set if this socket listens
  LinkEnd end_;
  bool disconnected_ = false;
  bool connected_ = false, refused_ = false;
  int connection_ = -1;  // libzmq's descriptor of the connection, if this socket connects and has one
  std::string public_key_;
  std::shared_ptr<Borrowed> borrowed_;
};

}  // namespace vccl
