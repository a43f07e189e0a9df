// The streams of blocks of long messages between this rank and one on another host: one for each direction,
// each over a connection of its own beside the encrypted one (block_stream.hpp).
//
// A stream is made for the first long message of its direction, with two fields in the messages that are
// exchanged about it anyway. The sender's offer has {secret}, its contribution to the keys. The answer to it,
// in the first want, has {secret, stream}: the receiver's contribution, and where it listens for blocks. If
// one of the two ranks cannot make a stream, the fields are missing, and the blocks of that direction go over
// the encrypted connection.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/connections/block_stream.hpp"
#include "transport/connections/resumption.hpp"
#include "transport/msgpack.hpp"
#include "transport/state/group.hpp"

namespace vccl {

/// Guarded by its owner. The texts of Error(protocol) say what the peer did: "asked for a second stream".
class MessageStreams {
 public:
  /// How many blocks may be under way in one direction.
  static constexpr std::uint64_t kWindow = 8;

  MessageStreams(const Group& group, int peer, const LinkSettings& settings)
      : group_(group), peer_(peer), settings_(settings) {}
  ~MessageStreams();

  /// Adds this rank's contribution to an offer, if it is the first.
  void add_to_offer(msgpack::Map& offer);
  /// Reads the peer's answer from a want. Throws Error(protocol) for an answer to no question.
  void read_want(const msgpack::Value& want);
  /// Returns whether blocks to the peer go over a stream. All do, or none.
  bool sends() const { return sender_ != nullptr; }
  /// Sends a block of message `id`, the block with this number of all. At most kWindow blocks may be unread
  /// by the peer, and the block must not change until the peer has read it. While being_made_again(), nothing
  /// may be sent.
  void send(std::uint64_t id, std::span<const std::byte> block, std::uint64_t number);
  /// Call this when the peer has read so many blocks.
  void confirm(std::uint64_t blocks) {
    if (sender_) sender_->confirm(blocks);
  }
  void forget() {
    if (sender_) sender_->forget();
  }

  /// Returns whether the stream to the peer was cut, and another attempt to make it again should begin.
  bool wants_attempt();
  /// Begins it: ends the old connection. Returns the attempt's number, which the peer is to be told.
  std::uint64_t begin_attempt();
  /// Returns whether the peer has yet to answer that.
  bool being_made_again() const { return again_ && !joined_; }
  /// Call this when the peer begins an attempt. Returns the number of the frame that has to come next. Throws
  /// Error(protocol) if there is no stream from it.
  std::uint64_t rejoin(std::uint64_t attempt);
  /// Call this when the peer has answered an attempt: connects and sends what the peer has not read. Throws
  /// Error(protocol).
  void joined(std::uint64_t attempt, std::uint64_t frame);

  /// Reads the peer's contribution from an offer. Throws Error(protocol) for a second one, and for one of
  /// another length.
  void read_offer(const msgpack::Value& offer);
  /// Adds the answer to a want, if the peer has contributed and has no answer yet: listens for its blocks.
  void add_to_want(msgpack::Map& want);
  /// Returns the next block from the peer, whose sequence is the message's id. Throws Error(protocol) if
  /// blocks were lost.
  std::optional<RemoteBlock> receive() { return receiver_ ? receiver_->receive() : std::nullopt; }

  /// Returns what is wrong with the stream to the peer: it could not be made within
  /// LinkSettings::patience(), or has ended a while ago.
  std::optional<Error> problem();
  /// Returns whether problem() may find something without a further event.
  bool restless() const;

  /// Returns the descriptors of the streams that were made so far. They become readable as those of ZmqSocket
  /// do.
  const std::vector<int>& descriptors() const { return descriptors_; }
  /// Calls visit(ZmqSocket&) for the socket of each stream.
  template <class Visit>
  void visit_sockets(Visit visit) {
    if (sender_) visit(sender_->socket());
    if (receiver_) visit(receiver_->socket());
  }
  /// Forgets the streams without closing them. For a forked child, which has no thread of libzmq.
  void abandon();

 private:
  FrameProtection agree(int from, int to, const std::string& offered, const std::string& answered) const;
  /// Returns "the stream of messages from rank 0 to rank 1 (tcp://10.0.0.2:40001, host node2)".
  std::string stream_text() const;

  const Group& group_;
  const int peer_;
  const LinkSettings settings_;
  std::unique_ptr<BlockSender> sender_;
  std::unique_ptr<BlockReceiver> receiver_;
  std::string ours_, theirs_;  // contributions to the keys, until they are used
  bool offered_ = false, answered_ = false, asked_ = false;
  bool ended_ = false;               // a block could not be sent
  std::optional<Resumption> again_;  // while the stream to the peer is made again
  bool was_made_ = false;            // that stream was there once
  bool joined_ = false;              // the peer has answered the attempt under way
  std::uint64_t attempt_ = 0;        // the number of the last one
  std::uint64_t their_attempt_ = 0;  // the same for the stream from the peer
  std::string endpoint_;             // where the peer listens
  Clock::time_point connect_by_{};
  std::vector<int> descriptors_;
};

}  // namespace vccl
