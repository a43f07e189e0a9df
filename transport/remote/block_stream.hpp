// The two ends of a stream of blocks between neighbours on different hosts. It goes over a connection of its
// own, which libzmq does not encrypt: frames are protected as crypto/frame.hpp says, with keys that the two
// ranks have agreed on over the encrypted connection beside it (remote_links.hpp).
#pragma once

#include <optional>
#include <string>

#include "transport/communicator.hpp"
#include "transport/crypto/frame.hpp"
#include "transport/remote/zmq_socket.hpp"
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
    std::string header;
    const std::byte* data;
    std::size_t bytes;
  };

  /// Connects to where a BlockReceiver with the same protection listens.
  BlockSender(const std::string& endpoint, FrameProtection protection,
              Milliseconds silence = LinkSettings().silence);

  /// Returns whether prepare() writes to its slot.
  bool encrypts() const { return sealer_.encrypts(); }
  /// Protects a block. If the stream encrypts, writes what is to be sent to `slot`, which is as long as the
  /// block and may be the block's own memory. Blocks are sent in the order in which they are prepared.
  Prepared prepare(std::uint64_t sequence, std::span<const std::byte> block, std::byte* slot);
  /// Sends a block without copying it: it must not change until the peer says that it has read it, or until
  /// socket().borrowed()->count() is 0. Returns false if that is not possible any more.
  bool send(const Prepared& block);
  /// Returns whether the connection has been broken for a while. The peer ends this connection and the one
  /// beside it at about the same time, and has its last words on that one.
  bool is_broken();
  /// Returns whether is_broken() may become true without a further event.
  bool suspicious() const { return ended_.has_value(); }
  /// Returns whether is_broken() has found that the connection was made.
  bool connected() const { return socket_.connected(); }
  ZmqSocket& socket() { return socket_; }

 private:
  ZmqSocket socket_;
  FrameSealer sealer_;
  std::optional<Clock::time_point> ended_;
};

/// Receives blocks. Guarded by the owner's mutex.
class BlockReceiver {
 public:
  /// Listens. Until accept(), nothing is received.
  BlockReceiver(const LinkSettings& settings, const Log& log);

  const std::string& endpoint() const { return endpoint_; }
  void accept(FrameProtection protection) { opener_.emplace(std::move(protection)); }
  /// Returns whether the sender has connected: its greeting was received. From then on nobody else can
  /// connect.
  bool greeted() const { return greeted_; }
  /// Returns the next block, if there is one. Drops frames that are not the peer's and logs that. Throws
  /// Error(protocol) if frames were lost.
  std::optional<RemoteBlock> receive();
  ZmqSocket& socket() { return socket_; }

 private:
  void tell_of(const ZmqMessage& header, FrameOpener::Verdict verdict);

  ZmqSocket socket_;
  std::string endpoint_;
  const Log log_;
  std::optional<FrameOpener> opener_;
  bool greeted_ = false;
  RateLimit told_;
};

}  // namespace vccl
