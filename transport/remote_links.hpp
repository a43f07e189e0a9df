// A rank's links to ring neighbours on other hosts, and what is said on them.
//
// Every message is a MessagePack map {v: 1, t: type, ...}, a block has its bytes in a second frame:
//   hello    both ways, first: {token} by the one who connects
//   begin    both ways, at the start of an operation: {seq, collective, dtype, op, root, count, extra}
//   block    to the right: {seq, n}: block n of the link's life, and its bytes
//   release  to the left: {n}: n blocks have been read
//   fail     both ways: {code, text}: the group has failed
//   left     both ways, last
#pragma once

#include <deque>
#include <mutex>

#include "transport/communicator.hpp"
#include "transport/gate.hpp"
#include "transport/zmq_socket.hpp"

namespace vccl {

/// One link. The socket and `told` are guarded by the mutex of RemoteLinks; the rest belongs to the
/// operation's thread.
struct RemoteLink {
  enum class Side { left, right };  // where the peer sits
  struct Block {
    std::uint64_t sequence;
    ZmqMessage bytes;
  };

  RemoteLink(Side peer_side, int peer_rank) : side(peer_side), peer(peer_rank) {}

  Side side;
  int peer;
  ZmqSocket socket;
  std::string endpoint;
  std::string token;                                       // what the left neighbour has to know
  bool greeted = false;                                    // the peer's hello has come
  bool told = false;                                       // the group's failure was sent, or came from there
  bool left = false;                                       // the peer has left
  bool gone = false;                                       // the connection has ended
  std::deque<std::pair<std::uint64_t, Signature>> begins;  // of operations that we have not begun
  std::uint64_t compared = 0;                              // last operation whose signatures were found equal
  std::deque<Block> blocks;                                // from the left, not yet released
  std::uint64_t received = 0;                              // blocks, from the left
  std::uint64_t posted = 0;                                // blocks, to the right
  std::uint64_t released = 0;                              // blocks, by the right
};

class RemoteLinks {
 public:
  explicit RemoteLinks(Group& group) : group_(group) {}
  ~RemoteLinks();

  /// Listens for the left neighbour and publishes where; connects to the right one; -1: that one is on this
  /// host. Returns when both have answered. Throws Error(bootstrap | timeout | protocol | system).
  void connect(Store& store, int left, int right, const std::string& address);
  RemoteLink* to_left() { return left_.get(); }
  RemoteLink* to_right() { return right_.get(); }
  Group& group() { return group_; }

  /// Announces the operation under way to both neighbours.
  void begin();
  /// Waits until both neighbours have begun it too, with the same signature.
  void match();

  /// Receives what has come and passes a failure on. Throws nothing; a message that breaks the protocol fails
  /// the group.
  void pump() noexcept;
  /// Tells the neighbours about the group's failure, unless another thread uses the links at this moment:
  /// that one will.
  void spread_failure() noexcept;
  /// Sends, whatever the state; a peer that has gone is found by the next wait.
  void send(RemoteLink& link, const std::string& control);
  void send(RemoteLink& link, const std::string& control, const std::byte* data, std::size_t size);

  /// Waiter::until for a condition that a message from `link` makes true. Messages are received by the
  /// operation's thread alone, so it may look at the link's state without the mutex.
  template <class Ready>
  void until(Ready ready, RemoteLink& link, const char* what) {
    if (!ready()) slow(ready, link, what);
  }

  /// Ends the links. Passes on the failure or says that we left; returns when libzmq reads no memory of ours,
  /// or after a second.
  void close() noexcept;

 private:
  void slow(FunctionRef<bool()> ready, RemoteLink& link, const char* what);
  bool ready_now(FunctionRef<bool()> ready, RemoteLink& link, const char* what);
  void poll(std::chrono::milliseconds time);
  /// Under the mutex: the first thing that is wrong, for the caller to fail the group with once it has let
  /// go.
  std::optional<Error> receive_all();
  std::optional<Error> receive_from(RemoteLink& link);
  void understand(RemoteLink& link, ZmqSocket::Received received);
  void compare_begins(RemoteLink& link);
  void send_failure(RemoteLink& link);

  Group& group_;
  std::mutex mutex_;
  std::unique_ptr<RemoteLink> left_, right_;
};

/// The ring's link to a right neighbour on another host.
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

/// The ring's link from a left neighbour on another host.
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
