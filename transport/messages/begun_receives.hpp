// Which sends meet a receive that has begun already.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "transport/messages.hpp"
#include "transport/state/group.hpp"

namespace vccl {

/// Counts the sends and the receives between this rank and those of its host whose tag has no number. Such
/// messages meet in the order of the calls, so the receive of the n-th send is the n-th receive.
class BegunReceives {
 public:
  explicit BegunReceives(const Group& group);

  /// Counts a receive. The engine calls this under its mutex when the receive takes its place in the order.
  void count_receive(int from, MessageTag tag);
  /// Counts a send, and returns whether its receive is counted. False for other tags and other hosts.
  /// Thread-safe: of two sends that are counted at once, one is the later.
  bool count_send(int to, MessageTag tag);

 private:
  /// Returns the rank's index in the host.
  std::optional<std::size_t> index_of(int rank) const;

  const Group& group_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> sends_;  // by index in the host, and kind of message
};

}  // namespace vccl
