// A rank's links to its two neighbours on other hosts, on a ring or on a leap (HostRing), and the waits for
// them.
#pragma once

#include <mutex>

#include "transport/bootstrap/meeting.hpp"
#include "transport/communicator.hpp"
#include "transport/host/operation_start.hpp"
#include "transport/links/remote_link.hpp"

namespace vccl {

class RemoteLinks {
 public:
  /// `name` tells the keys of these links in the rendezvous store from those of others.
  RemoteLinks(const Group& group, const CurrentOperation& operation, FailureChannel& failures,
              std::string name = "link")
      : group_(group), operation_(operation), failures_(failures), name_(std::move(name)) {}
  ~RemoteLinks();

  /// Listens for the left neighbour, publishes the endpoint, and connects to the right neighbour. A neighbour
  /// of -1 is on this host and gets no link. Blocks until both neighbours have answered, and until the left
  /// one's stream of blocks has come through as well. Throws Error(bootstrap | timeout | protocol | system |
  /// peer_dead), and Error(invalid) if a neighbour has another LinkSettings::security.
  void connect(Meeting& meeting, int left, int right, const LinkSettings& settings);
  /// Call this when all ranks have met.
  void settle();
  /// Lets waits look for failures on these links as well.
  void also_watch(RemoteLinks& others) { others_.push_back(&others); }
  RemoteLink* to_left() { return left_.get(); }
  RemoteLink* to_right() { return right_.get(); }
  const Group& group() const { return group_; }
  const CurrentOperation& operation() const { return operation_; }
  FailureChannel& failures() { return failures_; }

  /// Announces the operation under way to both neighbours.
  void begin();
  /// Announces it to the right neighbour only, and only along with the first block that goes there. That
  /// saves messages where every rank sends something to its right neighbour. match() must not be called.
  void begin_with_block();
  /// Returns the fields that announce the operation, if the right neighbour has yet to be told, and otherwise
  /// none. The caller tells it.
  msgpack::Map take_announcement();
  /// Blocks until both neighbours have begun the operation too, with the same signature.
  void match();
  /// Returns whether `link` has announced the operation under way with the same signature, or need not.
  bool agrees(const RemoteLink& link) const {
    return begun_ != operation_.sequence() || link.compared == begun_;
  }

  /// Receives what has arrived and sends a failure on. Never throws: a message that breaks the protocol fails
  /// the group.
  void pump() noexcept { receive(Ends::in_operation); }
  /// Does the same between two operations, and fails the group if a neighbour has died. The caller has
  /// borrowed the current operation.
  void look_around() noexcept { receive(Ends::after_operation); }
  /// Does the same between two operations, but fails the group for nothing but the failure that a neighbour
  /// tells: the end of a neighbour is noted in LostRanks. The caller has borrowed the current operation.
  void listen() noexcept { receive(Ends::ignored); }
  /// Returns how the neighbour `rank` has ended. Returns nothing while it lives, if it is no neighbour, or
  /// while an operation waits, which then fails. Never waits. May be called from any thread.
  std::optional<RankEnd> end_of_peer(int rank) noexcept;
  /// Sends the group's failure to the neighbours, unless another thread uses the links at this moment. That
  /// thread is then woken, and sends the failure.
  void spread_failure() noexcept;
  /// Sends like RemoteLink::send_surely() in any state. A later wait notices if the peer has gone.
  void send(RemoteLink& link, const char* type, msgpack::Map fields,
            std::optional<std::span<const std::byte>> block = std::nullopt);

  /// Tells the left neighbour how many of its blocks have been read, if it does not know that.
  void tell_releases();
  /// Sends a block on the link's stream like BlockSender::send().
  void send(RemoteLink& link, const BlockSender::Prepared& block);

  /// Blocks like Waiter::until() for a condition that a message from `link` makes true. Only the operation's
  /// thread receives messages, so the condition may read what it counts without the mutex.
  template <class Ready>
  void until(Ready ready, RemoteLink& link, const char* what) {
    if (!ready()) wait(ready, link, what);
  }

  /// Call this before any of a rank's links is closed. Goes on with the making again of connections that were
  /// cut: the last words need one, and so does a last block that was lost, without which the neighbour cannot
  /// end its operation. Blocks for at most LinkSettings::silence, and for kFarewell if the group has failed.
  void await_touch() noexcept;
  /// Ends the links. Sends the failure, or that this rank left. Blocks until libzmq reads no memory of this
  /// rank any more, or for a second.
  void close() noexcept;

 private:
  using State = PeerConnection::State;
  /// What the end of a neighbour means when it is found.
  enum class Ends { in_operation, after_operation, ignored };

  /// Returns the key under which `rank` says where it listens.
  std::string key_of(int rank) const { return name_ + "/" + std::to_string(rank); }

  /// Blocks until the stream of `link`, which is open to the left, has brought its greeting.
  void await_stream(RemoteLink& link);
  void receive(Ends ends) noexcept;
  void wait(FunctionRef<bool()> ready, RemoteLink& link, const char* what);
  /// Receives what has arrived before the last poll(). Returns whether the condition holds, or throws why the
  /// wait has to end.
  bool look(FunctionRef<bool()> ready, RemoteLink& link, const char* what);
  /// Returns "rank 0 waited 60 s for rank 1 (tcp://..., host node2) on another host to send ...".
  std::string wait_text(Milliseconds waited, const RemoteLink& link, const char* what) const;
  /// Tells the user of a wait that has lasted long.
  void warn(std::chrono::nanoseconds waited, const RemoteLink& link, const char* what) const;
  /// Waits for at most `time` until something has arrived, and notes where.
  void poll(std::chrono::milliseconds time);
  /// Does the same. The caller holds the mutex.
  void poll_locked(std::chrono::milliseconds time);
  /// Receives from both links where poll_locked() has found something. The caller holds the mutex. Returns
  /// the first error, with which the caller fails the group once it has released the mutex.
  std::optional<Error> receive_all();
  std::optional<Error> receive_from(RemoteLink& link);
  void understand(RemoteLink& link, ZmqSocket::Received received);
  void understand_begin(RemoteLink& link, const msgpack::Value& message);
  void compare_begins(RemoteLink& link);
  /// Compares what faster neighbours have announced already.
  void compare_early_begins();
  /// Notes in LostRanks which neighbours are long gone, and tells the neighbours what is new there. The
  /// caller holds the mutex.
  void pass_on_losses();
  /// Sends the group's failure to the neighbours if it has `failed`, or else that this rank leaves. The
  /// caller holds the mutex.
  void say_last(bool failed) noexcept;
  void await_last_words() noexcept;
  /// Returns a neighbour that died so long ago that no operation can still be about to succeed. The caller
  /// holds the mutex. A rank that waits for another rank then fails the group as well, because that other
  /// rank may wait for the dead one in vain.
  const RemoteLink* long_gone() const;
  /// Returns the error of a wait for the peer of `link` if that peer has left, or if its connection or that
  /// of long_gone() has ended. `link` is null for a wait for a rank of this host. The caller holds the mutex.
  std::optional<Error> end_of(const RemoteLink* link, const char* what) const;

  const Group& group_;
  const CurrentOperation& operation_;
  FailureChannel& failures_;
  const std::string name_;
  std::vector<RemoteLinks*> others_;
  std::uint64_t begun_ = 0;           // the last operation that was begun on these links
  bool right_is_to_be_told_ = false;  // of that operation, along with a block
  FileDescriptor wake_;               // an eventfd that ends poll()
  std::mutex mutex_;
  std::unique_ptr<RemoteLink> left_, right_;
};

/// Sends blocks to a right neighbour on another host.
class RemoteOutbox final : public Outbox {
 public:
  explicit RemoteOutbox(RemoteLinks& links) : links_(links), link_(*links.to_right()) {}
  void post(std::size_t offset, std::size_t bytes) override;
  /// Does what post() does, from any memory.
  void lend(const std::byte* data, std::size_t bytes);
  std::byte* reserve() override;
  void commit(std::size_t bytes) override;
  void drain() override;

 private:
  void await_credit();
  void send(const std::byte* data, std::size_t bytes);
  /// Returns the slot of the next block.
  std::byte* slot();

  RemoteLinks& links_;
  RemoteLink& link_;
  std::uint64_t lent_ = 0;  // the number of the last block that was not copied
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
  std::deque<RemoteBlock>* taken_ = nullptr;  // where the block lies that was taken last
};

}  // namespace vccl
