// A link to one ring neighbour on another host: the connection that carries control messages and short
// blocks, encrypted by libzmq, and beside it the stream of long blocks, which is protected as
// VCCL_LINK_SECURITY says.
//
// The rank that listens for its left neighbour adds to its record {security, stream}: how it protects blocks,
// and where it listens for them. The rank on the left adds to its hello {session}: 16 random bytes that only
// the two ranks know. Both ranks add to their hello {secret}: what each contributes to the keys of the
// stream. A rank without libcrypto leaves that out, and all blocks then go over the encrypted connection.
//
// Beside the control messages of peer_connection.hpp there are these. A block has its bytes in a second
// frame.
//   begin    both ways or to the right, at the start of an operation: {seq, algorithm, collective, dtype, op,
//            root, count, extra, heard}
//   block    to the right: {seq, n, heard}: the nth short block of the link's life, and its bytes. If the
//            operation was not announced to the right yet, the fields of begin are there as well
//   release  to the left: {n, heard}: n blocks, short and long, have been read
//   lost     both ways, at any time: {rank}: that rank has died, or cannot be reached
//   ping     to the left: {n}: to be answered by pong {n}, which proves that the connection has not ended
// `heard` is how many messages of the types begin and block have come (journal.hpp).
//
// A connection that is cut is made again, and with it the stream, from the first hello on. The rank on the
// left connects with new sockets, and says hello {again, session, attempt, heard}. The attempts of a link
// have ascending numbers. The rank on the right answers with hello {again, attempt, heard, frame}: `frame` is
// the number of the frame of the stream that has to come next. The secrets are in the hello as well for as
// long as the other rank may not know them. Both ranks then repeat what the other one has not heard. What was
// sent on the new connection before the answer does not count.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "transport/communicator.hpp"
#include "transport/connections/block_stream.hpp"
#include "transport/connections/journal.hpp"
#include "transport/connections/peer_connection.hpp"
#include "transport/connections/resumption.hpp"
#include "transport/support/function_ref.hpp"

namespace vccl {

/// What an error says after the end of a connection.
inline constexpr char kWhyGone[] = ": the process or its host died, or the network failed";

/// One link. The mutex of RemoteLinks guards the connection. Everything else belongs to the operation's
/// thread.
struct RemoteLink : PeerConnection {
  enum class Side { left, right };  // where the peer is on the ring
  /// What the peer says at the start of an operation.
  struct Begin {
    std::uint64_t sequence;
    Signature signature;
    std::uint32_t algorithm, order;
  };
  RemoteLink(const Group& group, const FailureChannel& failures, const LinkSettings& link_settings,
             Side peer_side, int peer)
      : PeerConnection(group, failures, link_settings, peer), side(peer_side) {}

  /// Listens for a stream of blocks, if this rank can protect one, and adds what the neighbour needs of it to
  /// the record of the listener.
  void offer_stream(msgpack::Map& record);
  /// Reads what the neighbour offers. Throws Error(invalid) if it has another LinkSettings::security. Returns
  /// the fields of this rank's hello, which accept the offer.
  msgpack::Map accept_stream(const msgpack::Value& record);
  /// Handles the neighbour's first hello, which came as `received`: opens this rank's end of the stream, and
  /// answers.
  void greet(const msgpack::Value& hello, const ZmqSocket::Received& received);
  /// Returns whether a block of so many bytes goes over the stream. Both ends come to the same answer.
  bool streams(std::size_t bytes) const { return (sender || receiver) && bytes > ZmqSocket::kCopied; }

  /// Receives what has arrived where `ready` says so. Calls understand() for each message.
  /// Goes on with the making again of a connection that was cut.
  void receive_ready(FunctionRef<void(ZmqSocket::Received&)> understand);

  /// Returns whether what is sent now reaches the peer: no connection is being made again.
  bool in_touch() const { return !again_ || answered_; }
  /// Sends a message that has to arrive, now or when the connection was made again, with a block behind it if
  /// there is one. The block is not copied if it is long, and must not change until the peer has read it.
  void send_surely(const char* type, msgpack::Map fields,
                   std::optional<std::span<const std::byte>> block = std::nullopt);
  /// Sends a message that catch_up() repeats in another form. Drops it if the peer cannot be reached now.
  void send_loosely(const char* type, msgpack::Map fields);
  /// Sends a block on the stream, now or when the connection was made again.
  void send(const BlockSender::Prepared& block);
  /// Call this when the peer has read so many blocks, and so many messages.
  void confirm(std::uint64_t blocks);

  /// Sends a message that is neither counted nor repeated. Returns false if the connection has ended.
  bool post(const std::string& message, ZmqMessage* payload = nullptr);

  /// Does so with the last message. The connection may end once it has gone out.
  void post_last(const std::string& message);

  /// Returns whether a message comes from a connection that is not the peer's, or not yet.
  bool is_apart(const ZmqSocket::Received& received) const {
    return side == Side::left ? !route_.empty() && received.route != route_ : !in_touch();
  }
  /// Handles such a message.
  void understand_apart(const ZmqSocket::Received& received);
  void understand_pong(std::uint64_t number);
  /// Call this before the sockets are closed. Nothing is sent again from then on, so memory that was lent may
  /// change once the sockets do not read it any more.
  void finish();

  /// Where there may be something to receive. A descriptor of libzmq becomes readable only after an attempt
  /// to read has found nothing, so all begin as ready.
  struct Ready {
    bool control = true, monitor = true, stream = true, broken = true;
  };

  Ready ready;
  const Side side;
  // All ranks of the group have met. Until then a connection may be cut only so many times.
  bool settled = false;
  Journal journal{kMostUnconfirmed};
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
  // The protocol lets a rank be ahead of its neighbour by kSlots blocks and as many operations.
  static constexpr std::size_t kMostUnconfirmed = 16 * Communicator::kSlots;

  // Each one but the first delays the next attempt. Together this takes about a second.
  static constexpr int kMostCuts = 20;

  void open_stream(const msgpack::Value& hello);
  bool stream_is_cut();
  void keep_up(bool cut);
  void begin_again();
  int count_cut();
  void attempt();
  void try_again(bool cut);
  void await_peer();
  void give_up(bool within_time);
  void resume(const msgpack::Value& answer, const ZmqSocket::Received& received);
  bool fits(const ZmqSocket::Received& received) const;
  void welcome(const msgpack::Value& message, const std::string& route);
  void tell_of_stranger(const std::string& address);
  void suspect();
  bool probe();
  void trust();
  void catch_up();
  void transmit(const std::string& message, ZmqMessage* payload = nullptr);

  msgpack::Map contribution() const;
  FrameProtection agree(const std::string& theirs) const;

  std::string stream_endpoint_;  // of the right neighbour
  // Of this rank to the keys, until the peer knows it and this rank has used it. Empty if there is no stream.
  std::string contribution_;
  std::string session_;              // what only the two ranks know
  std::optional<Resumption> again_;  // while the connection is made again
  bool answered_ = false;            // the peer has answered the attempt under way
  bool finished_ = false;            // nothing is made again any more
  int cuts_ = 0;                     // how many connections have ended before the link was settled
  bool cut_ = false;                 // something could not be sent
  std::uint64_t attempt_ = 0;        // the number of the last attempt, of all in the link's life
  std::string route_;                // of the peer's connection, if it connects
  // The connection may have ended: no ping from this one on was answered. A listener's only.
  std::optional<std::uint64_t> suspected_from_;
  std::uint64_t pings_ = 0;
  Clock::time_point next_probe_{};
  RateLimit told_;  // of strangers
};

}  // namespace vccl
