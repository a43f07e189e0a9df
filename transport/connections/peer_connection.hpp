// What the ring's links and the messages share: how a rank connects to a rank on another host, what the two
// say first and last, how the end of the connection is noticed, and how sockets are closed.
//
// A rank that listens publishes a ListenerRecord in the rendezvous store. Three control messages are common:
//   hello   first, by the rank that connects, and by the ring's listening rank too: {rank, token, host},
//           and what remote_link.hpp and message_links.hpp say. `host` is the name of the rank's host
//   fail    {code, text}: the group has failed
//   left    {why}: last
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/connections/control_messages.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/state/failure_channel.hpp"

namespace vccl {

/// Where a rank listens, and what a rank that connects has to prove to know.
struct ListenerRecord {
  std::string endpoint, key, token, host;

  /// Listens for `ranks` ranks, and returns where.
  static ListenerRecord listen(ZmqSocket& socket, const LinkSettings& settings, std::size_t ranks,
                               const Log& log);
  static ListenerRecord read(const msgpack::Value& record);
  /// Encodes the record with further fields, which concern one kind of link.
  std::string encode(msgpack::Map fields = {}) const;
  /// Returns the rank that says hello, below `size`. Throws Error(protocol) if the token is another token.
  int read_hello(const msgpack::Value& message, int size) const;
};

/// The end of a connection: none at first, then noticed, and over once all that came before it has been read.
class ConnectionEnd {
 public:
  void notice() { noticed_ = true; }
  /// Call this when all that had arrived has been read.
  void read_out() {
    if (noticed_ && !over_) over_ = Clock::now();
  }
  /// Call this when nothing more can arrive, or is wanted.
  void finish() {
    notice();
    read_out();
  }
  bool noticed() const { return noticed_; }
  /// Returns whether the connection has been over for `time`.
  bool over(Milliseconds time = {}) const { return over_ && Clock::now() - *over_ >= time; }

 private:
  bool noticed_ = false;
  std::optional<Clock::time_point> over_;
};

/// One peer on another host, and this rank's own socket to it, if there is one. Guarded by its owner.
class PeerConnection {
 public:
  enum class State {
    unknown,  // nothing was heard of the peer
    open,
    told,  // this rank has said its last words, or the peer has told that the group failed
    left,  // the peer has said that it leaves
    lost,  // the peer's end was reported
  };

  PeerConnection(const Group& group, const FailureChannel& failures, const LinkSettings& link_settings,
                 int peer_rank)
      : rank(peer_rank), settings(link_settings), group_(group), failures_(failures) {}

  const int rank;
  const LinkSettings settings;  // of this rank
  ListenerRecord listener;      // of the peer, or of this rank if the peer connects to it
  std::unique_ptr<ZmqSocket> socket;
  ConnectionEnd end;  // of the socket's connection

  bool is(State state) const { return state_ == state; }
  /// Call these when the peer has proven who it is, and when its end was reported.
  void open() {
    if (is(State::unknown)) state_ = State::open;
  }
  void lose() { state_ = State::lost; }

  /// Notes where the peer listens.
  void learn(const ListenerRecord& record);
  /// Connects there, and says hello with further `fields`.
  void connect(ZmqSocket::Kind kind, msgpack::Map fields = {});
  /// Does the same with a new socket, in place of the socket whose connection has ended.
  void connect_again(msgpack::Map fields);
  std::string hello(msgpack::Map fields = {}) const;
  /// Opens the connection to the peer at `address`. Throws Error(protocol) for a wrong hello.
  void read_hello(const msgpack::Value& message, const std::string& address);
  /// Returns whether this rank is still trying to connect. A pair that was refused is replaced by another
  /// one. Ends the connection after LinkSettings::patience(): then end_text() says that it could not be made.
  bool connecting();
  /// Ends the connection, which could not be made again within `tried`, or not at all if that is nothing.
  void give_up_again(std::optional<Milliseconds> tried);
  /// Ends the connection, which was cut so many times while the group was made, or could not be made again
  /// within `tried` at last.
  void give_up_after(int cuts, std::optional<Milliseconds> tried = std::nullopt);
  /// Returns "rank 1 (tcp://10.0.0.2:40001, host node2)".
  std::string peer_text() const;

  /// Calls handle(ZmqSocket::Received) for each message on the socket, until it returns false. Returns
  /// whether all that had arrived was read.
  template <class Handle>
  bool receive(Handle handle) {
    // This is read first: libzmq reports the end of a connection after it has received what the peer sent
    // before.
    if (socket->disconnected()) end.notice();
    while (auto received = socket->receive()) {
      if (!handle(std::move(*received))) return false;
    }
    end.read_out();
    return true;
  }
  /// Returns how the connection ended, for instance "the connection of rank 0 to rank 1 (tcp://...) ended".
  std::string end_text() const;

  /// Handles the peer's last words. Returns false for any other message. Throws the failure that the peer
  /// tells.
  bool read_last_words(const msgpack::Value& message);
  /// Returns whether read_last_words() has read any.
  bool heard_last_words() const { return heard_last_words_; }
  /// Returns this rank's last words, once: the group's failure if it has `failed`, or else that this rank
  /// leaves. Returns nothing if the peer is not there to hear them, or was told before.
  std::optional<std::string> take_last_words(bool failed);

 protected:
  const Group& group_;

 private:
  void dial(const std::string& hello);

  const FailureChannel& failures_;
  ZmqSocket::Kind kind_ = ZmqSocket::Kind::pair;
  std::string first_hello_;                  // of a pair, until it is answered
  Clock::time_point dialled_{};              // when the last attempt to connect began
  bool ever_refused_ = false;                // an attempt was refused
  bool never_made_ = false;                  // all attempts before this one have failed
  bool made_again_ = false;                  // connect_again() was called, or the connection was given up
  std::optional<Milliseconds> tried_again_;  // for how long in vain
  int cuts_ = 0;                             // after how many it was given up, in a meeting
  State state_ = State::unknown;
  std::string why_;                 // the reason that the peer gave when it left
  std::string peer_place_;          // the peer's address and host
  Clock::time_point connect_by_{};  // when an attempt to connect is given up, if this rank connects
  bool gave_up_ = false;            // it was given up
  bool heard_last_words_ = false;
};

/// How long a rank that leaves, or whose group has failed, waits for the last words of peers that may be
/// ending too. If something comes after a connection was closed, the system resets it, and does not repeat
/// what was lost of this rank's own last words.
inline constexpr Milliseconds kFarewell{100};

/// Closes sockets. Then libzmq may still read from memory that was lent to it, on streams.
class ClosedSockets {
 public:
  /// How long all sockets together go on sending what was sent on them.
  static constexpr Milliseconds kLinger{300};

  void close(ZmqSocket& socket, Milliseconds linger = kLinger) noexcept;
  /// Blocks until libzmq reads no memory of this rank any more, for at most `patience`.
  void wait(Milliseconds patience, const Log& log) const noexcept;

 private:
  std::optional<Deadline> lingering_;
  std::vector<std::shared_ptr<Borrowed>> lent_;
};

}  // namespace vccl
