// What this rank sends to and receives from one rank on another host: control messages, and the bytes under
// way in both directions.
//
// Beside the control messages of peer_connection.hpp there are these. One with bytes has them in a second
// frame.
//   offer   {id, tag, bytes} and the signature's fields; a short message's bytes come along. With {cards} the
//           tag is one of cards. With {eager} the only block of a longer message follows unasked
//   want    {id}: the sender may send the offered message
//   block   {id, at}, and the bytes of the message from there on
//   got     {short, offers, blocks}: in all, how many bytes of short messages and how many offers are not
//           kept any more, and how many blocks have been read
//   done    {id}: the last of the message's blocks has been read
//   rejoin  {attempt}: the sender's stream was cut
//   joined  {attempt, frame}: the answer: the sender may connect its stream again, and begin with that frame
// These are counted, and have {heard}: how many of the peer's have come (journal.hpp). This one is not:
//   ping    {}: to be answered by pong {}, which proves that both directions work
// A long message may name or accept a stream (message_streams.hpp). Blocks then go over that, without
// control messages, in the same order.
// Offers go out in the order of the calls, and blocks in the order in which they were asked for. What the
// peer keeps is bounded (message_port.hpp): kShortRoom bytes of short messages, kMostUnreceived offers, and
// kWindow blocks of long messages that it has not read yet.
//
// An offer and a want cost two turns before the first byte goes. So a message of one block is sent at once if
// there is a stream, as long as the eager messages that are not done come to kEagerRoom bytes at most. The
// peer keeps the block until the offer has come, over the other connection, and a receive for it.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/connections/control_messages.hpp"
#include "transport/connections/journal.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/messages/message_port.hpp"
#include "transport/messages/message_streams.hpp"
#include "transport/state/group.hpp"

namespace vccl {

/// The socket on which this rank sends to a peer, with a route if the socket is a router.
struct MessagePath {
  ZmqSocket* socket;
  std::string route;
};

class MessagePeer {
 public:
  static constexpr std::size_t kShortBytes = 8 * 1024;
  static constexpr std::uint64_t kShortRoom = 256 * 1024;
  static constexpr std::uint64_t kEagerRoom = 1024 * 1024;
  static constexpr std::size_t kBlockBytes = Communicator::kBlockBytes;
  static constexpr std::uint64_t kWindow = MessageStreams::kWindow;

  MessagePeer(const Group& group, int rank, const LinkSettings& settings)
      : group_(group), rank_(rank), streams_(group, rank, settings) {}

  /// Adds a message of this rank. It is offered once the peer has room for another offer.
  void offer(const Envelope& envelope, std::span<const std::byte> bytes);
  /// Returns the messages whose bytes were copied since the last call, as the peer had room for them.
  std::vector<std::uint64_t> take_copied() { return std::exchange(copied_, {}); }
  /// Call this when a message of the peer is not kept any more. `payload` bytes had come along with its
  /// offer.
  void matched(std::size_t payload);
  /// Returns whether all offers that the peer may make have come. The peer then waits before it makes
  /// another.
  bool is_full() const { return offers_received_ - offers_told_ >= kMostUnreceived; }
  /// Lets the peer make further offers. If those that are kept leave no room, lets it make as many again.
  void allow_more();
  /// Asks for the offered message `id`, whose bytes will be written to `memory`, unless they come unasked.
  /// Call place_kept() soon afterwards.
  void take(std::uint64_t id, std::span<std::byte> memory);
  /// Sends a message that is not counted.
  void say(const char* type) { put(type, {}, std::nullopt, false); }
  /// Returns whether a message waits for nothing but room on the link.
  bool waiting() const { return !outbox_.empty(); }
  /// Returns whether flush() has something to try, a message or a block.
  bool has_something_to_send() const { return !outbox_.empty() || !wanted_.empty(); }

  /// Sends what can be sent. Returns whether that was anything.
  bool flush(const MessagePath& path);
  /// Returns how many messages of the peer have come, of the types that are counted.
  std::uint64_t heard() const { return journal_.heard(); }
  /// Call this when the peer says how many of this rank's it has heard. Fewer than before change nothing.
  /// Throws Error(protocol) if they are more than were sent.
  void confirm(std::uint64_t heard);
  /// Call this when the connection was made again, and the peer has told how many it has heard: sends the
  /// rest again. Throws Error(protocol) if they are more than were sent, or fewer than before.
  void repeat(std::uint64_t heard);
  /// Tells the peer of another attempt to make the stream to it again.
  void rejoin() { put("rejoin", {{"attempt", streams_.begin_attempt()}}); }
  /// Call this when nothing is sent any more, and memory that was lent may change.
  void forget();

  /// Handles one message of the types from offer to done. Throws Error(protocol) for what no correct peer
  /// sends.
  void understand(const msgpack::Value& message, const std::optional<ZmqMessage>& payload, MessageSink& sink);

  /// Handles the next block that has come over the peer's stream, and returns its length, or 0 if none has
  /// come. Throws Error(protocol).
  std::size_t read_stream(MessageSink& sink);
  /// Hands over the kept messages that were asked for since the last call. Returns whether there were any.
  /// Throws Error(protocol).
  bool place_kept(MessageSink& sink);
  MessageStreams& streams() { return streams_; }
  const MessageStreams& streams() const { return streams_; }

  /// Returns Error(protocol) about this peer: "rank 3 " + what.
  Error breach(const std::string& what) const;

 private:
  struct Outgoing {
    msgpack::Map fields;
    std::optional<ZmqMessage> payload;
    bool counted = true;
  };
  /// A long message of this rank, until it is done.
  struct Offered {
    std::span<const std::byte> bytes;
    bool wanted = false;
    bool eager = false;
    std::size_t sent = 0;
    std::uint64_t last_block = 0;  // the number of its last block, once that has been sent
  };
  /// A long message of the peer, from its offer on.
  struct Incoming {
    std::uint64_t bytes;
    bool wanted = false;
    bool eager = false;
    std::byte* memory = nullptr;
    std::uint64_t received = 0;
  };

  /// Returns what step() returns. Names the peer in the Error(protocol) of its streams.
  template <class Step>
  auto checked(Step step) const;
  /// Calls step(). Names the peer in the Error(protocol) of the journal.
  template <class Step>
  void journaled(Step step) const;
  bool may_be_eager(std::size_t bytes) const;
  void put(const char* type, msgpack::Map fields, std::optional<ZmqMessage> payload = std::nullopt,
           bool counted = true);
  bool transmit(const MessagePath& path, Outgoing& next);
  void make_offers();
  bool send_block(const MessagePath& path);
  void read_offer(const msgpack::Value& message, const std::optional<ZmqMessage>& payload, MessageSink& sink);
  void read_want(const msgpack::Value& message);
  bool has_place(std::uint64_t id) const;
  void keep(std::uint64_t id, ZmqMessage block);
  void read_block(std::uint64_t id, std::optional<std::uint64_t> at, const ZmqMessage& payload,
                  MessageSink& sink);
  void read_got(const msgpack::Value& message);
  void read_done(std::uint64_t id, MessageSink& sink);
  void say_got();

  const Group& group_;
  const int rank_;
  MessageStreams streams_;
  Journal journal_{4 * kMostUnreceived};
  std::deque<Outgoing> outbox_;
  std::deque<std::pair<Envelope, std::span<const std::byte>>> unoffered_;  // the peer has no room yet
  std::vector<std::uint64_t> copied_;
  std::unordered_map<std::uint64_t, Offered> offered_;
  std::deque<std::uint64_t> wanted_;  // ids in offered_, in the order in which their bytes were asked for
  std::unordered_map<std::uint64_t, Incoming> incoming_;
  std::unordered_map<std::uint64_t, ZmqMessage> kept_;  // eager messages that were not asked for, by id
  std::uint64_t kept_bytes_ = 0;
  std::vector<std::uint64_t> asked_for_;  // kept messages for which place_kept() has something to do
  std::uint64_t eager_undone_ = 0;        // bytes of this rank's eager messages that are not done
  std::uint64_t last_id_ = 0;             // the last id that was offered to this rank
  // The next members count over the link's life. Those that end in sent_ count what went to the peer, and
  // those in read_ what the peer has read or does not keep any more. Those in received_, freed_ and matched_
  // count at this rank, and those in told_ what the peer was told of these.
  std::uint64_t short_sent_ = 0, short_read_ = 0, blocks_sent_ = 0, blocks_read_ = 0;
  std::uint64_t offers_sent_ = 0, offers_room_ = kMostUnreceived;
  std::uint64_t short_received_ = 0, short_freed_ = 0, short_told_ = 0;
  std::uint64_t blocks_received_ = 0, blocks_told_ = 0;
  std::uint64_t offers_received_ = 0, offers_matched_ = 0, offers_freed_ = 0, offers_told_ = 0;
};

}  // namespace vccl
