// The interface between the matching of messages (message_engine.hpp) and the transport of their bytes. One
// port serves the ranks of this host (mapped_port.hpp), and another those of other hosts, if there are any
// (message_links.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "transport/communicator.hpp"
#include "transport/messages.hpp"

namespace vccl {

/// What is sent about a message before its bytes, or together with them.
struct Envelope {
  MessageTag tag;
  Signature signature;
  std::uint64_t bytes = 0;  // the length of the whole message
  std::uint64_t id = 0;     // the sender's number of the message; ids ascend over all the sender's messages
};

/// Receives what a port reports. Ports call it within progress() only.
class MessageSink {
 public:
  virtual ~MessageSink() = default;

  /// Reports a message of rank `source`. Calls come in the order of that rank's sends. With `payload`, the
  /// bytes have come along and are valid during the call. The port has checked that payload->size() ==
  /// envelope.bytes. Without `payload`, the bytes stay with the sender until take(source, envelope.id, ...).
  virtual void offered(int source, const Envelope& envelope,
                       std::optional<std::span<const std::byte>> payload) = 0;
  /// Reports that the memory of this rank's message `id` is not read any more. Called once for every send().
  virtual void sent(std::uint64_t id) = 0;
  /// Reports that the memory given to take(source, id, ...) holds the message, and that the sender will learn
  /// this even if this rank leaves at once. Called once for every take().
  virtual void taken(int source, std::uint64_t id) = 0;
  /// Reports that rank `rank` has left the group or is dead: no more messages will come from it, and all that
  /// had come have been reported. `how` is "rank 3 left group G" or "rank 3 (pid 77) died", and for the
  /// network "the connection of rank 0 to rank 3 (tcp://...) ended". The engine appends " while rank 0 waited
  /// ...". From then on no operation has to wait for the rank.
  virtual void lost(int rank, ErrorCode code, const std::string& how) = 0;

  /// Returns whether a receive waits for a message of rank `source` that has not been offered yet.
  virtual bool awaits(int source) const = 0;
};

/// Threads: the engine calls every member but the constructor, the destructor and what the port offers
/// besides under its mutex. So calls come one at a time, from any thread. A port reports only through the
/// sink of progress(), during that call. No member blocks, and no call copies more than about kCopyAtOnce
/// bytes: the rest is for the next progress(). A port that has to wait for descriptors does so on a thread of
/// its own, which calls `notify`. The engine then calls progress() soon. That thread either only notices that
/// something came, or collects it under a mutex of the port. Such a mutex is taken after the engine's and is
/// never held while `notify` is called.
///
/// Bounds: the engine keeps what was offered until a receive takes it, so a port bounds it for each peer, and
/// what it keeps itself besides. One bound is for the bytes of short messages that came with their offers.
/// Beyond it, the sender offers further messages without their bytes. The other bound is for the number of
/// offers, kMostUnreceived. Beyond it, the sender keeps further messages back. A receiver that awaits() a
/// message that is not among the offers allows as many offers again, because the message may be behind those
/// offers.
///
/// Failure: for a breach of the protocol, progress() throws Error(protocol). A failure that a peer has
/// announced is thrown as it is. The engine records the error as the group's failure and completes every
/// operation with it. The engine does the same when the group has failed in another way. In each case, and at
/// the end, the engine calls stop() first.
class MessagePort {
 public:
  static constexpr std::size_t kCopyAtOnce = std::size_t{1} << 20;

  virtual ~MessagePort() = default;

  /// Called first and once, at the first use of the communicator's messages. `notify` may be called from any
  /// thread at any time until stop() has returned. It takes no lock that is held together with the engine's
  /// mutex. Throws Error(system) if the port cannot work.
  virtual void start(std::function<void()> notify) = 0;

  /// Sends a message to rank `to`. The port keeps the order of calls for each rank, and keeps what it cannot
  /// send yet. The bytes must not change until sent(envelope.id) is reported. A short message is copied if
  /// the peer has room for its bytes, and is sent by the next progress(). Any other message is offered, and
  /// is read when the peer takes it.
  virtual void send(int to, const Envelope& envelope, std::span<const std::byte> bytes) = 0;
  /// Asks for a message that was offered without its payload, whose bytes will be written to `memory`.
  /// memory.size() must be the message's length. The caller must not touch the memory until taken(source, id)
  /// is reported.
  virtual void take(int source, std::uint64_t id, std::span<std::byte> memory) = 0;
  /// Call this when a message that rank `source` offered has been matched, so that it is not kept any more.
  /// `payload` is the number of bytes that came with the offer.
  virtual void matched(int source, std::size_t payload) = 0;
  /// Call this when an operation waits for rank `rank`. From then on the port reports that rank's end by
  /// lost(), even if no message was exchanged with it. Called often, so this must be cheap.
  virtual void watch(int rank) = 0;

  /// Moves on what can be moved without waiting. Returns whether anything was moved: the engine then calls
  /// again before it sleeps. The engine also calls once more between announcing that it sleeps and sleeping.
  /// So a `notify` at any time before that call, or a result of true, keeps the engine awake.
  virtual bool progress(MessageSink& sink) = 0;

  /// Blocks until no memory of any operation is read or written any more, for at most a second. If the group
  /// has failed, announces the failure to the peers that only this port can reach. Only the destructor is
  /// called afterwards.
  virtual void stop() noexcept = 0;
};

}  // namespace vccl
