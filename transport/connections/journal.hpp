// What one end of a connection between two ranks has sent and heard on it, so that nothing is lost or done
// twice when the connection is made again.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "transport/connections/zmq_api.hpp"
#include "transport/support/protocol.hpp"

namespace vccl {

/// Both ends count the messages that have to arrive, in the order in which they go. The sender keeps each of
/// them until the receiver has confirmed it. A confirmation is a count, in the field `heard` of a message
/// that goes the other way. Guarded by its owner.
class Journal {
 public:
  struct Message {
    std::string control;  // encoded
    std::optional<ZmqMessage> payload;
    /// Returns the message's fields, with another confirmation.
    msgpack::Map renewed(std::uint64_t heard) const;
  };

  /// A peer that leaves more than `most` messages unconfirmed breaks the protocol.
  explicit Journal(std::size_t most) : most_(most) {}

  /// Keeps a message and counts it as sent. Throws Error(protocol) if the peer has confirmed too little.
  void keep(std::string control, std::optional<ZmqMessage> payload);
  /// Counts a message of the peer.
  void hear() { ++heard_; }
  /// Returns how many messages of the peer have come.
  std::uint64_t heard() const { return heard_; }
  /// Call this when the peer says how many messages it has heard: forgets these. Throws Error(protocol) if
  /// they are more than were sent, or fewer than the peer has said before.
  void confirm(std::uint64_t heard);
  /// Returns how many messages the peer has confirmed.
  std::uint64_t confirmed() const { return confirmed_; }
  /// Returns the messages that the peer has not confirmed, in the order in which they were sent.
  const std::deque<Message>& unconfirmed() const { return kept_; }
  /// Returns these messages too, and counts them as not sent.
  std::deque<Message> take_back();
  /// Forgets all messages, and with them the memory that was lent to them. Nothing can be sent again then.
  void forget() { kept_.clear(); }

 private:
  const std::size_t most_;
  std::uint64_t heard_ = 0, confirmed_ = 0, sent_ = 0;
  std::deque<Message> kept_;  // the last ones of those that were sent
};

}  // namespace vccl
