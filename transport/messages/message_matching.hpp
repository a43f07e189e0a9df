// Matches messages with receives. Holds those that have not been matched yet, and moves no bytes.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/messages/message_port.hpp"

namespace vccl {

/// A message for which no receive was called yet.
struct Arrival {
  int source = 0;
  Envelope envelope;
  bool complete = false;           // all bytes are here; otherwise the sender keeps them until they are taken
  std::vector<std::byte> payload;  // the bytes, if the message is complete
};

/// Keeps messages and receives by tag, in the order in which they came. Not thread-safe.
class MessageMatching {
 public:
  /// Removes and returns the first message with this tag from `from`, or from any rank for kAnySource.
  std::optional<Arrival> find_arrival(int from, MessageTag tag);
  void add_arrival(Arrival arrival) { arrivals_[arrival.envelope.tag].push_back(std::move(arrival)); }

  /// Removes the first receive that fits a message from `source`, and returns its number.
  std::optional<std::uint64_t> find_receive(int source, MessageTag tag);
  /// Adds a receive. `number` is the caller's, and find_receive() returns it.
  void add_receive(std::uint64_t number, int from, MessageTag tag);
  /// Returns whether there is a receive that fits some message from `source`.
  bool awaits(int source) const { return waiting_.contains(source) || waiting_.contains(kAnySource); }

  /// Returns how many messages of each tag have come from `from` and wait for a receive.
  std::map<MessageTag, std::size_t> unreceived(int from) const;

 private:
  struct Receive {
    std::uint64_t number;
    int from;
  };
  std::map<MessageTag, std::list<Arrival>> arrivals_;
  std::map<MessageTag, std::list<Receive>> receives_;
  std::unordered_map<int, std::size_t> waiting_;  // how many receives name each source
};

}  // namespace vccl
