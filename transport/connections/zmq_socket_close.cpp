// How a socket ends: its connections first, and then the socket itself.
//
// zmq_close() takes the queue of messages away from a connection at once, but ends the connection later: when
// it has sent what waits (ZMQ_LINGER), or when libzmq's threads come to it. If a message comes in meanwhile,
// libzmq (4.3.5) has no place for it and stops to read. If then the connection breaks before the next
// heartbeat, that ends the process: "Assertion failed: !_io_error". So a socket that has heartbeats keeps its
// queues until its connections have ended.
#include <sys/socket.h>
#include <unistd.h>

#include "transport/connections/connection_guard.hpp"
#include "transport/connections/zmq_socket.hpp"

namespace vccl {
namespace {

// How long libzmq's thread may take to end a connection. It takes a turn of that thread.
constexpr Milliseconds kEnding{500};
constexpr useconds_t kPause = 20;  // microseconds

}  // namespace

/// Returns whether there is a connection that has not ended.
bool ZmqSocket::has_connection() {
  if (listener_) return context_->connection_guard().has_connections(*listener_);
  hung_up();
  return connection_ >= 0;
}

void ZmqSocket::end_connections(Milliseconds linger) {
  const Deadline sending = Deadline::in(linger);
  while (borrowed_->count() > 0 && !sending.passed() && has_connection()) usleep(kPause);
  if (listener_) {
    context_->connection_guard().end_connections(*listener_);
  } else if (has_connection()) {
    const ConnectionHandle handle(connection_);
    // If libzmq had closed the descriptor before it was copied, it has said so before that.
    if (has_connection()) handle.shutdown(SHUT_RD);
  }
  const Deadline ending = Deadline::in(kEnding);
  while (!ending.passed() && has_connection()) usleep(kPause);
}

void ZmqSocket::close(Milliseconds linger) noexcept {
  using namespace zmq_constant;
  if (!socket_) return;
  const ZmqApi& api = zmq_api();
  try {
    if (has_heartbeats() && (listener_ || monitor_)) {
      end_connections(linger);
      linger = Milliseconds(0);
    }
  } catch (const std::exception&) {
    // libzmq then ends the connections as it can.
  }
  const int milliseconds = static_cast<int>(linger.count());
  api.setsockopt(socket_, kLinger, &milliseconds, sizeof milliseconds);
  if (listener_) context_->connection_guard().dismiss(listener_);
  api.socket_monitor(socket_, nullptr, 0);
  api.close(socket_);
  const int none = 0;
  if (void* monitor = listener_ ? listener_->monitor : monitor_) {
    api.setsockopt(monitor, kLinger, &none, sizeof none);
    api.close(monitor);
  }
  socket_ = monitor_ = nullptr;
  end_ = LinkEnd();
}

}  // namespace vccl
