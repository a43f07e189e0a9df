// A link to one ring neighbour on another host: the connection that carries control messages and short
// blocks, encrypted by libzmq, and beside it the stream of long blocks, which is protected as
// VCCL_LINK_SECURITY says.
//
// The rank that listens for its left neighbour adds to its record {security, stream}: how it protects blocks,
// and where it listens for them. Both ranks add to their hello {secret}: what each contributes to the keys of
// the stream. A rank without libcrypto leaves these out, and all blocks then go over the encrypted
// connection.
//
// Beside the control messages of peer_connection.hpp there are these. A block has its bytes in a second
// frame.
//   begin    both ways or to the right, at the start of an operation: {seq, algorithm, collective, dtype, op,
//            root, count, extra}
//   block    to the right: {seq, n}: the nth short block of the link's life, and its bytes. If the operation
//            was not announced to the right yet, the fields of begin are there as well
//   release  to the left: {n}: n blocks, short and long, have been read
//   lost     both ways, at any time: {rank}: that rank has died, or cannot be reached
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "transport/communicator.hpp"
#include "transport/remote/block_stream.hpp"
#include "transport/remote/peer_connection.hpp"

namespace vccl {

/// One link. The mutex of RemoteLinks guards the connection. Everything else belongs to the operation's
/// thread.
struct RemoteLink : PeerConnection {
  enum class Side { left, right };  // where the peer is on the ring
  /// What the peer says at the start of an operation.
  struct Begin {
    std::uint64_t sequence;
    Signature signature;
    std::uint32_t algorithm;
  };
  RemoteLink(const Group& group, const FailureChannel& failures, const LinkSettings& link_settings,
             Side peer_side, int peer)
      : PeerConnection(group, failures, link_settings, peer), side(peer_side) {}

  /// Listens for a stream of blocks, if this rank can protect one, and adds what the neighbour needs of it to
  /// the record of the listener.
  void offer_stream(msgpack::Map& record);
  /// Reads what the neighbour offers. Throws Error(invalid) if it has another LinkSettings::security. Returns
  /// the fields of this rank's hello that accept the offer.
  msgpack::Map accept_stream(const msgpack::Value& record);
  /// Reads the rest of the neighbour's hello, and opens this rank's end of the stream.
  void open_stream(const msgpack::Value& hello);
  /// Returns the fields of this rank's answer to hello, once: forgets what it contributed to the keys.
  msgpack::Map take_answer();
  /// Returns whether a block of so many bytes goes over the stream. Both ends come to the same answer.
  bool streams(std::size_t bytes) const { return (sender || receiver) && bytes > ZmqSocket::kCopied; }

  /// Receives what has arrived where `ready` says so. Calls understand(ZmqSocket::Received) for each message.
  template <class Understand>
  void receive_ready(Understand understand) {
    if (std::exchange(ready.monitor, false)) {
      if (socket->disconnected()) end.notice();
      // What a listener reports may be the end of a stranger's connection. Only looking again tells.
      ready.monitor = socket->suspicious();
      ready.control = true;  // the look may have noticed that something has arrived
    }
    if (std::exchange(ready.control, false)) {
      while (auto received = socket->receive()) understand(std::move(*received));
    }
    end.read_out();
    connecting();
    // One block at a time is deciphered, shortly before it is read.
    while (receiver && ready.stream && streamed.empty()) {
      auto block = receiver->receive();
      ready.stream = block.has_value();
      if (block) streamed.push_back(std::move(*block));
    }
    if (sender && ready.broken) {
      if (sender->is_broken()) end.finish();
      ready.broken = sender->suspicious();
    }
  }

  /// Where there may be something to receive. A descriptor of libzmq becomes readable only after an attempt
  /// to read has found nothing, so all begin as ready.
  struct Ready {
    bool control = true, monitor = true, stream = true, broken = true;
  };

  Ready ready;
  const Side side;
  std::unique_ptr<BlockSender> sender;      // to the right, if there is a stream
  std::unique_ptr<BlockReceiver> receiver;  // from the left
  std::deque<Begin> begins;                 // of operations that this rank has not begun
  std::uint64_t compared = 0;               // the last operation whose signatures were found equal
  std::deque<RemoteBlock> blocks;           // short blocks from the left that are not yet released
  std::deque<RemoteBlock> streamed;         // long ones
  int lost_told = 0;                        // how many entries of LostRanks the peer was told
  std::uint64_t received = 0;               // the number of short blocks received from the left
  std::uint64_t consumed = 0;               // the number of blocks from the left that this rank has read
  std::uint64_t told = 0;                   // what the left neighbour knows of that number
  std::uint64_t posted = 0;                 // the number of blocks sent to the right
  std::uint64_t sent = 0;                   // of these, short ones
  std::uint64_t released = 0;               // the number of blocks that the right neighbour has released

 private:
  msgpack::Map contribution() const;
  FrameProtection agree(const std::string& theirs) const;

  std::string stream_endpoint_;  // of the right neighbour
  std::string contribution_;     // of this rank to the keys, until it is used; empty if there is no stream
};

}  // namespace vccl
