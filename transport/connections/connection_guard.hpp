// Limits how many connections the listening sockets of this process hold.
//
// libzmq accepts every connection, and a connection that sends nothing keeps its descriptor for as long as
// libzmq waits for a handshake. So this process makes its listening sockets itself, and counts each socket's
// connections from libzmq's events. While there are too many, the kernel refuses further connections.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "transport/support/function_ref.hpp"
#include "transport/support/log.hpp"
#include "transport/support/rate_limit.hpp"
#include "transport/system/shared_memory.hpp"
#include "transport/variables.hpp"

namespace vccl {

/// Returns a TCP socket that listens at `address` ("10.0.0.7", "[2001:db8::7]") on a free port of `ports`,
/// for ZMQ_USE_FD. Without ZMQ_USE_FD, libzmq lists the network interfaces, and calls abort() if it has no
/// descriptor for that. Throws Error(system), also if no port of the range is free.
FileDescriptor listen_at(const std::string& address, const PortRange& ports);

/// Returns the host and the port of an endpoint: "2001:db8::7" and "40001" of "tcp://[2001:db8::7]:40001".
/// Returns nothing for a text of another form.
std::optional<std::pair<std::string, std::string>> host_and_port(const std::string& endpoint);

/// Returns whether the system at `endpoint` ("tcp://10.0.0.7:40001") says that nobody listens there. Returns
/// false if it does not say so within a moment, and blocks for that long at most.
bool is_refused_at(const std::string& endpoint) noexcept;

/// Makes the kernel end a TCP connection if what was sent on it stays unconfirmed for so long, and repeat
/// what was lost at least once a second until then. So a link that was cut works again soon after the cut.
/// Otherwise the pauses double, and the connection can stay silent for as long again as the cut lasted; this
/// is so before Linux 6.15. Connections that a listening socket accepts inherit both.
void tune_connection(int socket, int milliseconds) noexcept;

/// A descriptor of its own for a connection that belongs to libzmq. libzmq may close its own at any time, and
/// the number may then be that of another file. So make this, and then make sure that libzmq has not reported
/// the connection's end: libzmq does that before it closes the descriptor.
class ConnectionHandle {
 public:
  explicit ConnectionHandle(int connection) noexcept;
  ~ConnectionHandle();
  ConnectionHandle(const ConnectionHandle&) = delete;
  ConnectionHandle& operator=(const ConnectionHandle&) = delete;

  int number() const { return number_; }  // negative if there was no descriptor left
  /// Calls shutdown(). After SHUT_RD libzmq reads what has come and then finds the connection's end, and what
  /// it is about to write still goes out.
  void shutdown(int how) const noexcept;
  /// Ends the connection as a reset does: what is under way is lost, and the other end is told.
  void reset() const noexcept;

 private:
  const int number_;
};

/// One listening socket. The guard's mutex guards all members but `ends` and `endpoint`.
struct WatchedListener {
  struct Connection {
    std::string address, port;  // of the other end
    std::size_t greeted;        // the value of WatchedListener::greeted when this connection was accepted
    std::uint64_t number = 0;   // of all connections to this listener, in the order in which they came
  };

  FileDescriptor ends;  // an eventfd that counts connections that have ended
  std::string endpoint;
  int listening = -1;       // libzmq's descriptor, which libzmq closes with its socket
  void* monitor = nullptr;  // the socket of the guard that receives libzmq's events
  std::size_t places = 0;   // the largest number of connections at a time, while it is open to them
  std::size_t limit = 0;    // the same, and 0 while it refuses all
  bool reopens = false;     // the end of a connection lets others in after shut()
  bool makes_room = false;  // the connection that is open for longest ends where there are too many
  Log log;
  std::map<int, Connection> connections;  // by their descriptors
  std::optional<int> proven;              // the descriptor of a pull's only rank
  std::uint64_t accepted = 0;             // how many connections there were
  std::size_t greeted = 0;                // how many handshakes have succeeded
  bool failed = false;                    // a handshake has failed, and its connection is about to end
  bool shut = false;                      // the kernel refuses all further connections
  RateLimit strangers;
};

/// Reads libzmq's events of all listeners on a thread of its own, which sleeps while no connection begins or
/// ends, unless a connection to a pull is not yet known to be a rank's. Thread-safe.
class ConnectionGuard {
 public:
  /// Throws Error(system).
  ConnectionGuard();
  ~ConnectionGuard();
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  /// Watches the listener until dismiss(). All members of `listener` but the counters must be set.
  void attend(std::shared_ptr<WatchedListener> listener);
  /// How many bytes may come over a connection to a pull that is not yet known to be a rank's. libzmq reads
  /// them all, whether the process is ready for them or not. A rank sends far less before it is answered.
  static constexpr std::uint64_t kMostUnproven = 16 << 20;

  /// Refuses all further connections, if the listener `reopens` until one of them ends. Existing connections
  /// stay. If libzmq's descriptor of a `rank` is given, all others end.
  void shut(WatchedListener& listener, std::optional<int> rank);
  /// Ends the connection of the rank that shut() was given.
  void end_proven(WatchedListener& listener);
  /// Lets connections in again after shut().
  void reopen(WatchedListener& listener);
  /// Lets nobody in any more, and all connections end. Blocks for no longer than a call of the system.
  void end_connections(WatchedListener& listener);
  /// Returns whether there are connections whose ends libzmq has not reported.
  bool has_connections(WatchedListener& listener);
  /// Call this before libzmq's socket is closed. Close the monitor after that.
  void dismiss(const std::shared_ptr<WatchedListener>& listener) noexcept;

 private:
  void run();
  void read_events(WatchedListener& listener);
  void understand(WatchedListener& listener, int event, int value);
  void tell_of_stranger(WatchedListener& listener, const WatchedListener::Connection& connection);
  void make_room(WatchedListener& listener);
  using Choice = FunctionRef<bool(int, const WatchedListener::Connection&)>;
  void end_those(WatchedListener& listener, int how, Choice chosen);
  bool bound_unproven(WatchedListener& listener);
  void turn_away(WatchedListener& listener, bool everybody);

  std::mutex mutex_;
  std::list<std::shared_ptr<WatchedListener>> listeners_;
  FileDescriptor wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace vccl
