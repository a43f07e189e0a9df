// The two ends of a stream of blocks between neighbours on different hosts. It goes over a connection of its
// own, which libzmq does not encrypt: frames are protected as crypto/frame.hpp says, with keys that the two
// ranks have agreed on over the encrypted connection beside it (remote_links.hpp).
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "transport/communicator.hpp"
#include "transport/connections/zmq_socket.hpp"
#include "transport/crypto/frame.hpp"
#include "transport/support/rate_limit.hpp"

namespace vccl {

/// One block that has come from another host.
struct RemoteBlock {
  std::uint64_t sequence;  // of its operation
  ZmqMessage bytes;
};

/// Sends blocks. prepare() belongs to the operation's thread. The socket is guarded by the owner's mutex.
class BlockSender {
 public:
  struct Prepared {
    std::uint64_t frame;  // its number
    std::string header;
    const std::byte* data;
    std::size_t bytes;
  };

  /// Connects to where a BlockReceiver with the same protection listens. If `resumes`, libzmq makes no
  /// connection anew: the owner calls keep(), confirm(), pause() and resume(). The greeting has the number of
  /// the attempt.
  BlockSender(const std::string& endpoint, FrameProtection protection,
              Milliseconds silence = LinkSettings().silence, bool resumes = false, std::uint64_t attempt = 0);

  /// Returns whether prepare() writes to its slot.
  bool encrypts() const { return sealer_.encrypts(); }
  /// Protects a block. If the stream encrypts, writes what is to be sent to `slot`, which is as long as the
  /// block and may be the block's own memory. Blocks are sent in the order in which they are prepared.
  Prepared prepare(std::uint64_t sequence, std::span<const std::byte> block, std::byte* slot);
  /// Sends a block without copying it: it must not change until the peer says that it has read it, or until
  /// socket().borrowed()->count() is 0. Returns false if that is not possible any more.
  bool send(const Prepared& block);

  /// Keeps what is needed to send a block again, until the peer has confirmed `number`. Numbers ascend. The
  /// block must not change until then.
  void keep(const Prepared& block, std::uint64_t number);
  /// Call this when the peer says that it has read all blocks up to `number`.
  void confirm(std::uint64_t number);
  /// Call this when the blocks may change, because nothing is sent any more.
  void forget() { kept_.clear(); }
  /// Ends the connection. Until resume(), nothing may be sent.
  void pause() noexcept { socket_->close(Milliseconds(0)); }
  /// Connects again, and sends what was sent from frame `next` on once more, exactly as it was. A greeting
  /// with the number of the attempt follows. Throws Error(protocol) if the peer cannot expect that frame.
  void resume(std::uint64_t next, std::uint64_t attempt);
  /// Tries again to make the first connection if that was refused a moment ago.
  void retry();
  /// Returns whether the connection has ended, `time` ago. The peer ends this connection and the connection
  /// beside it at about the same time, and has its last words on the other connection.
  bool ended(Milliseconds time = {});

  /// Returns whether ended() has found an end.
  bool suspicious() const { return ended_.has_value(); }
  /// Return whether ended() has found that the connection was made, or refused.
  bool connected() const { return socket_->connected(); }
  bool refused() const { return socket_->refused(); }
  ZmqSocket& socket() { return *socket_; }

 private:
  struct Kept {
    Prepared block;
    std::uint64_t number;  // of the block
  };

  void connect();
  void greet(std::uint64_t attempt);

  const std::string endpoint_;
  const Milliseconds silence_;
  const bool resumes_;
  std::unique_ptr<ZmqSocket> socket_;
  FrameSealer sealer_;
  std::deque<Kept> kept_;             // the last frames that were made, in order
  Clock::time_point connected_at_{};  // when the last attempt to connect began
  std::optional<Clock::time_point> ended_;
};

/// Receives blocks. Guarded by the owner's mutex.
class BlockReceiver {
 public:
  /// Listens. Until accept(), nothing is received.
  BlockReceiver(const LinkSettings& settings, const Log& log);

  const std::string& endpoint() const { return endpoint_; }
  void accept(FrameProtection protection) { opener_.emplace(std::move(protection)); }
  /// Lets the sender connect again. Returns the number of the frame that it has to begin with. Its greeting
  /// has the number of the attempt, and nobody else can connect from then on.
  std::uint64_t resume(std::uint64_t attempt);
  /// Returns whether the sender has connected: its greeting was received. From then on nobody else can
  /// connect.
  bool greeted() const { return greeted_; }
  /// Returns the next block, if there is one. Drops frames that are not the peer's and logs that. Ends the
  /// peer's connection if they came over that: somebody changes what it sends, and it has to send that again.
  /// Throws Error(protocol) if frames were lost.
  std::optional<RemoteBlock> receive();
  ZmqSocket& socket() { return socket_; }

 private:
  void tell_of(const ZmqMessage& header, FrameOpener::Verdict verdict);

  ZmqSocket socket_;
  std::string endpoint_;
  const Log log_;
  std::optional<FrameOpener> opener_;
  bool greeted_ = false;
  std::optional<int> peers_connection_;  // libzmq's descriptor, once nobody else can connect
  std::uint64_t attempt_ = 0;            // of making the connection again
  RateLimit told_;
};

}  // namespace vccl
