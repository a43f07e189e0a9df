// Between the matching of messages (message_engine.hpp) and what carries them: one port to the ranks of this
// host (message_mapped.hpp), and one to those of other hosts, where there are any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "transport/communicator.hpp"

namespace vccl {

/// What is said of a message before its bytes, or together with them.
struct Envelope {
  std::int32_t tag = 0;
  Signature signature;
  std::uint64_t bytes = 0;  // of the whole message
  std::uint64_t id = 0;     // the sender's number for it; the next message to anybody has a larger one
};

/// What a port reports, out of progress() alone.
class MessageSink {
 public:
  virtual ~MessageSink() = default;

  /// A message of rank `source`, in the order of that rank's calls. With `payload` the bytes have come along
  /// (then payload->size() == envelope.bytes, checked by the port) and are valid during the call. Without it
  /// they stay with the sender until take(source, envelope.id, ...).
  virtual void offered(int source, const Envelope& envelope,
                       std::optional<std::span<const std::byte>> payload) = 0;
  /// Nothing reads the memory of our own message `id` any more. Once for every send().
  virtual void sent(std::uint64_t id) = 0;
  /// The memory given to take(source, id, ...) holds the message, and the sender is sure to hear of it even
  /// if this rank leaves at once. Once for every take().
  virtual void taken(int source, std::uint64_t id) = 0;
  /// Rank `rank` has left the group or is dead: nothing more will come from it, and all that had come has
  /// been reported. `how`: "rank 3 left group G" or "rank 3 (pid 77) died", and for the network "the
  /// connection of rank 0 to rank 3 (tcp://...) ended"; the engine continues with " while rank 0 waited ...".
  /// No operation need wait for the rank now, or ever.
  virtual void lost(int rank, ErrorCode code, const std::string& how) = 0;
};

/// Threads. Every member but the constructor, the destructor and what the port offers besides is called under
/// the engine's mutex, hence one at a time, from any thread; a port reports through the sink that progress()
/// is given, during that call, and at no other time. Nothing blocks, and no call copies more than about
/// kCopyAtOnce bytes: the rest is for the next progress(). A port that has to wait for descriptors does that
/// on a thread of its own, which collects what came (under a mutex of its own, taken after the engine's and
/// never held while `notify` is called) or only looks that something came, and calls `notify`; the engine
/// then calls progress() soon.
///
/// Failure. What breaks the protocol: throw Error(protocol) out of progress(); a failure that a peer told us
/// about: throw it as it is. The engine records it as the group's failure and completes every operation with
/// it. So it does when the group has failed otherwise. In each case, and at the end, it calls stop() first.
class MessagePort {
 public:
  static constexpr std::size_t kCopyAtOnce = std::size_t{1} << 20;

  virtual ~MessagePort() = default;

  /// First, and once: at the first use of the communicator's messages. `notify` may be called from any
  /// thread, at any time until stop() has returned, and takes no lock that the engine's mutex is held with.
  /// Throws Error(system) if the port cannot work.
  virtual void start(std::function<void()> notify) = 0;

  /// A message to rank `to`. The port keeps the order of calls for each rank, and keeps what it cannot say
  /// yet. The bytes stay as they are until sent(envelope.id) is reported: a short message is copied on its
  /// way at once if there is room (then it is sent at the next progress()), a longer one is offered, and read
  /// when the peer takes it.
  virtual void send(int to, const Envelope& envelope, std::span<const std::byte> bytes) = 0;
  /// The message that was offered without its payload is to come to `memory` (memory.size() == its bytes),
  /// which nobody touches until taken(source, id) is reported.
  virtual void take(int source, std::uint64_t id, std::span<std::byte> memory) = 0;
  /// An operation waits for rank `rank`, which may not have been spoken to: from now on its end has to be
  /// reported, by lost(). Called often; cheap.
  virtual void watch(int rank) = 0;

  /// Moves on what can be moved without waiting. True if anything was: then the engine calls again before it
  /// sleeps. It also calls once more between the announcement that it sleeps and the sleep, so a `notify` at
  /// any time before that call, or a true from it, keeps it awake.
  virtual bool progress(MessageSink& sink) = 0;

  /// No memory of any operation is read or written any more when this returns, within a second. Passes on the
  /// group's failure, if it has failed, to the peers that this port alone can tell. Nothing but the
  /// destructor is called afterwards.
  virtual void stop() noexcept = 0;
};

}  // namespace vccl
