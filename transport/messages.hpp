// Messages between any two ranks of a group: send and receive, matched by source and tag.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "transport/deadline.hpp"
#include "transport/error.hpp"

namespace vccl {

struct Signature;

/// The source of a receive() that takes a message from any rank.
inline constexpr int kAnySource = -1;
/// The largest number of messages that a receiver keeps for one sender while no receive was called for them.
inline constexpr std::uint64_t kMostUnreceived = 16 * 1024;

/// The tag that a message and its receive must have in common to meet, beside the ranks: the program's tag,
/// and whether both tensors are on cards. A card's message is sent when its stream comes to it, and a message
/// of a CPU tensor at the call, so there is no order between the two. They never meet, as messages of NCCL
/// and of gloo do not.
struct MessageTag {
  /// Take the place of the program's tag where tags mean nothing, as with NCCL. Messages of a batch and
  /// others go over different communicators there, and never meet.
  static constexpr std::int32_t kNoneAlone = -1, kNoneInBatch = -2;
  /// Belongs to what two ranks send to each other before their first message, where they have to meet then.
  static constexpr std::int32_t kGreeting = -3;

  // Not explicit: where there are no cards, a tag is a number.
  MessageTag(std::int32_t programs_tag = 0, bool is_of_cards = false)
      : number(programs_tag), of_cards(is_of_cards) {}
  auto operator<=>(const MessageTag&) const = default;
  /// Returns "tag 5", or "tag 5 of cards", or that there is none, and whether it is a message of a batch.
  std::string text() const;

  std::int32_t number;
  bool of_cards;
};

/// Point-to-point operations of one communicator, beside its collectives. Any number of them may be under
/// way, and none waits for another, so a group of sends and receives in any order cannot deadlock.
///
/// A receive takes the first message, in the order of the sender's calls, whose tag and source fit. Receives
/// that fit the same message take turns in the order of their calls. All members are thread-safe.
///
/// A short message is on its way when send() returns. A long message is sent when the receiver asks for it,
/// or between hosts at once if there is room. For each sender, the receiver keeps a bounded amount of
/// messages for which no receive was called: 16 MiB of short messages' bytes on one host, 256 KiB and 1 MiB
/// of longer messages between hosts, and kMostUnreceived messages. Beyond the limit of bytes, short messages
/// stay with the sender as long messages do. Beyond the limit of messages, further messages are not even
/// announced, unless the receiver waits for a message that was not announced yet. An order of calls that
/// works within these limits therefore does not block beyond them, except for a send that must complete
/// before its receive is called. A send completes when its memory may be written again, and a receive when
/// its memory holds the message. If the deadline passes, or the peer dies or leaves, the operation fails, and
/// the communicator fails with it, as with a collective. A receive from any source fails in this way when
/// every other rank is gone, unless this rank has sent to itself before.
class Messages {
 public:
  /// Called exactly once. `source` is the sender's rank, or -1 after an error. `error` is null after success.
  /// The call comes on any thread, also within send() and receive(), with no lock held. The function must not
  /// block.
  using Done = std::function<void(int source, const Error* error)>;

  /// Who waits for a send, and may stop waiting before its end. A send that nobody waits for any more has no
  /// deadline, is no reason to call ranks deadlocked, and its receiver may leave without it. Thread-safe.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    /// Returns whether somebody still waits. An answer of false is the last one.
    virtual bool waits() const noexcept = 0;
    /// Called as Done is, and at most once, when nobody waits and the receiver has left or is dead. The send
    /// ends with the communicator then, because the system may still read its memory.
    virtual void receiver_is_gone() = 0;
  };

  virtual ~Messages() = default;

  /// Sends a message. `signature` has the values that both sides must have in common (the kind of element and
  /// the number). A difference is an Error(mismatch) on both sides, which names both. The memory must stay
  /// alive and unchanged until `done` is called. A peer on this host reads and writes memory in one of the
  /// communicator's regions in place. Other memory is staged. A rank may send to itself. Never blocks and
  /// never throws: every error goes to `done`, also an error that happens before anything is sent. Without
  /// `waiter`, somebody waits until the end.
  virtual void send(int to, MessageTag tag, const Signature& signature, std::span<const std::byte> bytes,
                    const Deadline& deadline, Done done, std::shared_ptr<Waiter> waiter) = 0;
  void send(int to, MessageTag tag, const Signature& signature, std::span<const std::byte> bytes,
            const Deadline& deadline, Done done) {
    send(to, tag, signature, bytes, deadline, std::move(done), nullptr);
  }
  /// Call this before each send with a tag of kNoneAlone or kNoneInBatch. Returns whether the receive has
  /// begun that will take the message, so that the send completes whatever the receiver's program does next.
  /// Returns false for other tags, and where that is not known: for ranks on other hosts.
  virtual bool meets_receive(int to, MessageTag tag) = 0;
  /// Receives a message from `from`, which is a rank or kAnySource. Otherwise as send().
  virtual void receive(int from, MessageTag tag, const Signature& signature, std::span<std::byte> bytes,
                       const Deadline& deadline, Done done) = 0;
};

}  // namespace vccl
