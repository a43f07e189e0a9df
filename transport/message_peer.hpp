// What messages have to say to one rank on another host, and the bytes under way in both directions.
//
// Every message is a map as control.hpp has it; what has bytes, has them in a second frame:
//   hello   first, by the rank that connects: {rank, token}
//   offer   {id, tag, bytes} and the signature's fields; a short message's bytes come along
//   want    {id}: the offered message may come
//   block   {id, at}, and the bytes of the message from there on
//   got     {short, blocks}: how many bytes of short messages, and how many blocks, have been read in all
//   done    {id}: the last of the message's blocks has been read
//   ping    to be answered by pong {}, which proves that the way there and back works
//   fail    {code, text}: the group has failed
//   left    last
// Offers go out in the order of the calls, and blocks in the order in which they were asked for. What is
// under way and not read yet is bounded: kShortRoom bytes of short messages, kWindow blocks of long ones.
#pragma once

#include <deque>
#include <unordered_map>

#include "transport/control.hpp"
#include "transport/group.hpp"
#include "transport/message_port.hpp"
#include "transport/zmq_socket.hpp"

namespace vccl {

/// Where to send what is for a peer: a connection of its own, or a router's.
struct MessagePath {
  ZmqSocket* socket;
  std::string route;
};

class MessagePeer {
 public:
  static constexpr std::size_t kShortBytes = 8 * 1024;
  static constexpr std::uint64_t kShortRoom = 256 * 1024;
  static constexpr std::size_t kBlockBytes = Communicator::kBlockBytes;
  static constexpr std::uint64_t kWindow = 8;

  MessagePeer(const Group& group, int rank) : group_(group), rank_(rank) {}

  /// A message of ours. True when its bytes were copied, as there is room for them.
  bool offer(const Envelope& envelope, std::span<const std::byte> bytes);
  /// What was offered to us is to come to `memory`.
  void take(std::uint64_t id, std::span<std::byte> memory);
  void say(const char* type) { outbox_.push_back({control(type), std::nullopt}); }
  /// Whether something waits that needs nothing but room on the link.
  bool waiting() const { return !outbox_.empty(); }

  /// Sends what can be sent. True if that was anything.
  bool flush(const MessagePath& path);
  /// One message of the types from offer to done. Throws Error(protocol) for what no peer says.
  void understand(const msgpack::Value& message, const std::optional<ZmqMessage>& payload, MessageSink& sink);

  /// Error(protocol) about this rank: "rank 3 " + what.
  Error breach(const std::string& what) const;

 private:
  struct Outgoing {
    std::string control;
    std::optional<ZmqMessage> payload;
  };
  /// A long message of ours, until it is done.
  struct Offered {
    std::span<const std::byte> bytes;
    bool wanted = false;
    std::size_t sent = 0;
    std::uint64_t last_block = 0;  // its number, once it has been sent
  };
  /// A long message of theirs, from its offer on.
  struct Incoming {
    std::uint64_t bytes;
    bool wanted = false;
    std::byte* memory = nullptr;
    std::uint64_t received = 0;
  };

  bool send_block(const MessagePath& path);
  void read_offer(const msgpack::Value& message, const std::optional<ZmqMessage>& payload, MessageSink& sink);
  void read_want(std::uint64_t id);
  void read_block(const msgpack::Value& message, const std::optional<ZmqMessage>& payload, MessageSink& sink);
  void read_got(const msgpack::Value& message);
  void read_done(std::uint64_t id, MessageSink& sink);
  void say_got();

  const Group& group_;
  const int rank_;
  std::deque<Outgoing> outbox_;
  std::unordered_map<std::uint64_t, Offered> offered_;
  std::deque<std::uint64_t> wanted_;  // of offered_, in the order in which their bytes were asked for
  std::unordered_map<std::uint64_t, Incoming> incoming_;
  std::uint64_t last_id_ = 0;  // that was offered to us
  // Counted over the link's life: sent to the peer and read by it, read here and told so.
  std::uint64_t short_sent_ = 0, short_read_ = 0, blocks_sent_ = 0, blocks_read_ = 0;
  std::uint64_t short_received_ = 0, short_told_ = 0, blocks_received_ = 0;
};

}  // namespace vccl
