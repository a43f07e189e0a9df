// Which message goes to which receive. Holds what has not met its other side yet; moves nothing.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/message_port.hpp"

namespace vccl {

/// A message that nobody has called receive() for yet.
struct Arrival {
  int source = 0;
  Envelope envelope;
  bool complete = false;  // the bytes are here; otherwise they stay with the sender until they are taken
  std::vector<std::byte> payload;  // of a complete one
};

/// Both sides are kept in the order in which they came, by tag. Not thread-safe.
class MessageMatching {
 public:
  /// The first message with this tag from `from`, or from anybody for kAnySource; it is taken out.
  std::optional<Arrival> find_arrival(int from, int tag);
  void add_arrival(Arrival arrival) { arrivals_[arrival.envelope.tag].push_back(std::move(arrival)); }

  /// The first receive that fits a message from `source`; it is taken out.
  std::optional<std::uint64_t> find_receive(int source, int tag);
  /// `number`: the caller's, for find_receive().
  void add_receive(std::uint64_t number, int from, int tag) { receives_[tag].push_back({number, from}); }

  /// How many messages of each tag have come from `from` and wait for a receive.
  std::map<int, std::size_t> unreceived(int from) const;

 private:
  struct Receive {
    std::uint64_t number;
    int from;
  };
  std::unordered_map<int, std::list<Arrival>> arrivals_;
  std::unordered_map<int, std::list<Receive>> receives_;
};

}  // namespace vccl
