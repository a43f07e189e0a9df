// A rank's links to ring neighbours on other hosts, and the messages on them.
//
// Every message is a MessagePack map {v: 1, t: type, ...}. A block has its bytes in a second frame. The
// types:
//   hello    both ways, first: {token} by the rank that connects
//   begin    both ways, at the start of an operation: {seq, collective, dtype, op, root, count, extra}
//   block    to the right: {seq, n}: block n of the link's life, and its bytes
//   release  to the left: {n}: n blocks have been read
//   fail     both ways: {code, text}: the group has failed
//   left     both ways, last: {why}
#pragma once

#include <deque>
#include <mutex>

#include "transport/bootstrap/meeting.hpp"
#include "transport/communicator.hpp"
#include "transport/host/operation_start.hpp"
#include "transport/remote/zmq_socket.hpp"

namespace vccl {

/// One link. The mutex of RemoteLinks guards the socket and `told`. Everything else belongs to the
/// operation's thread.
struct RemoteLink {
  enum class Side { left, right };  // where the peer is on the ring
  struct Block {
    std::uint64_t sequence;
    ZmqMessage bytes;
  };

  RemoteLink(Side peer_side, int peer_rank) : side(peer_side), peer(peer_rank) {}

  Side side;
  int peer;
  ZmqSocket socket;
  std::string endpoint;
  std::string token;     // what the left neighbour has to send in its hello
  bool greeted = false;  // the peer's hello has come
  bool told = false;     // the group's failure was sent to this peer, or came from it
  bool left = false;     // the peer has left
  std::string why;       // the reason that the peer gave when it left
  bool gone = false;     // the connection has ended
  Clock::time_point gone_since{};
  std::deque<std::pair<std::uint64_t, Signature>> begins;  // of operations that this rank has not begun
  std::uint64_t compared = 0;  // the last operation whose signatures were found equal
  std::deque<Block> blocks;    // blocks from the left that are not yet released
  std::uint64_t received = 0;  // the number of blocks received from the left
  std::uint64_t posted = 0;    // the number of blocks sent to the right
  std::uint64_t released = 0;  // the number of blocks that the right neighbour has released
};

class RemoteLinks {
 public:
  RemoteLinks(const Group& group, const CurrentOperation& operation, FailureChannel& failures)
      : group_(group), operation_(operation), failures_(failures) {}
  ~RemoteLinks();

  /// Listens for the left neighbour, publishes the endpoint, and connects to the right neighbour. A neighbour
  /// of -1 is on this host and gets no link. Blocks until both neighbours have answered. Throws
  /// Error(bootstrap | timeout | protocol | system).
  void connect(Meeting& meeting, int left, int right, const std::string& address);
  RemoteLink* to_left() { return left_.get(); }
  RemoteLink* to_right() { return right_.get(); }
  const Group& group() const { return group_; }
  const CurrentOperation& operation() const { return operation_; }
  FailureChannel& failures() { return failures_; }

  /// Announces the operation under way to both neighbours.
  void begin();
  /// Blocks until both neighbours have begun the operation too, with the same signature.
  void match();

  /// Receives what has arrived and sends a failure on. Never throws: a message that breaks the protocol fails
  /// the group.
  void pump() noexcept;
  /// Sends the group's failure to the neighbours, unless another thread uses the links at this moment. That
  /// thread then sends the failure.
  void spread_failure() noexcept;
  /// Sends in any state. A later wait notices if the peer has gone.
  void send(RemoteLink& link, const std::string& control);
  void send(RemoteLink& link, const std::string& control, const std::byte* data, std::size_t size);

  /// Blocks like Waiter::until() for a condition that a message from `link` makes true. Only the operation's
  /// thread receives messages, so it may read the link's state without the mutex.
  template <class Ready>
  void until(Ready ready, RemoteLink& link, const char* what) {
    if (!ready()) slow(ready, link, what);
  }

  /// Ends the links. Sends the failure, or that this rank left. Blocks until libzmq reads no memory of this
  /// rank any more, or for a second.
  void close() noexcept;

 private:
  void slow(FunctionRef<bool()> ready, RemoteLink& link, const char* what);
  bool ready_now(FunctionRef<bool()> ready, RemoteLink& link, const char* what);
  /// Fails the group and throws if the calling thread is interrupted. The caller must not hold the mutex.
  void check_interruption(const RemoteLink& link, const char* what);
  void poll(std::chrono::milliseconds time);
  /// Receives from both links. The caller holds the mutex. Returns the first error, with which the caller
  /// fails the group once it has released the mutex.
  std::optional<Error> receive_all();
  std::optional<Error> receive_from(RemoteLink& link);
  void understand(RemoteLink& link, ZmqSocket::Received received);
  void compare_begins(RemoteLink& link);
  void send_failure(RemoteLink& link);
  /// Returns a neighbour that died so long ago that no operation can still be about to succeed. The caller
  /// holds the mutex. A rank that waits for another rank then fails the group as well, because that other
  /// rank may wait for the dead one in vain.
  const RemoteLink* long_gone() const;
  /// Returns "the connection of rank 0 to rank 1 (tcp://...) ended while it waited for `wait`: ...".
  std::string gone_text(const RemoteLink& link, const std::string& wait) const;

  const Group& group_;
  const CurrentOperation& operation_;
  FailureChannel& failures_;
  std::mutex mutex_;
  std::unique_ptr<RemoteLink> left_, right_;
};

/// Sends blocks to a right neighbour on another host.
class RemoteOutbox final : public Outbox {
 public:
  explicit RemoteOutbox(RemoteLinks& links) : links_(links), link_(*links.to_right()) {}
  void post(std::size_t offset, std::size_t bytes) override;
  std::byte* reserve() override;
  void commit(std::size_t bytes) override;
  void drain() override;

 private:
  void await_credit();
  void send(const std::byte* data, std::size_t bytes);

  RemoteLinks& links_;
  RemoteLink& link_;
};

/// Receives blocks from a left neighbour on another host.
class RemoteInbox final : public Inbox {
 public:
  explicit RemoteInbox(RemoteLinks& links) : links_(links), link_(*links.to_left()) {}
  const std::byte* take(std::size_t offset, std::size_t bytes) override;
  const std::byte* take_committed(std::size_t bytes) override;
  void release() override;

 private:
  RemoteLinks& links_;
  RemoteLink& link_;
  std::uint64_t consumed_ = 0;
};

}  // namespace vccl
