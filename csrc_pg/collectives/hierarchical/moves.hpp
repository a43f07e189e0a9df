// What is moved from host to host, and the two ways in which it goes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "csrc_pg/collectives/hierarchical/host_call.hpp"
#include "csrc_pg/collectives/ring/ring_schedule.hpp"

namespace vccl {

/// Some bytes that go from the input of a rank to the output of another one, or of all.
struct HostMove {
  int from;
  std::size_t from_at;  // offsets in bytes
  int to;               // kToAll: to all ranks
  std::size_t to_at;
  std::size_t bytes;

  static constexpr int kToAll = -1;
};

/// What goes from one host to another, or to all: moves, one after the other. A share of it, or a block of a
/// share, is a range of its bytes and may begin and end within a move.
class Content {
 public:
  void add(const HostMove& move) {
    if (move.bytes == 0) return;
    moves_.push_back(move);
    ends_.push_back(bytes() + move.bytes);
  }
  std::size_t bytes() const { return ends_.empty() ? 0 : ends_.back(); }

  /// Calls each(part, offset) for the parts of moves in a range of bytes: `part` is a move that is cut to the
  /// range, and `offset` is where it begins in the range.
  template <class Each>
  void each(Chunk range, Each each) const {
    const std::size_t end = range.begin + range.count;
    auto at = std::size_t(std::upper_bound(ends_.begin(), ends_.end(), range.begin) - ends_.begin());
    for (std::size_t begin = range.begin; begin < end; ++at) {
      HostMove part = moves_[at];
      const std::size_t skipped = begin - (ends_[at] - part.bytes), to = std::min(ends_[at], end);
      part.from_at += skipped;
      part.to_at += skipped;
      part.bytes = to - begin;
      each(part, begin - range.begin);
      begin = to;
    }
  }

 private:
  std::vector<HostMove> moves_;
  std::vector<std::size_t> ends_;  // of the moves, in bytes
};

/// Sends a block of a content to the right on this rank's ring: straight from memory if it lies in one piece.
/// `address(part)` is where a part of a move is read.
template <class Address>
void send_block(HostRing& hosts, const Content& content, Chunk range, Address address) {
  if (range.count == 0) return;
  std::byte* slot = nullptr;
  content.each(range, [&](const HostMove& part, std::size_t offset) {
    if (part.bytes == range.count) return hosts.post(address(part), part.bytes);
    if (!slot) slot = hosts.right().reserve();
    std::memcpy(slot + offset, address(part), part.bytes);
  });
  if (slot) hosts.right().commit(range.count);
}

/// Returns the block of what goes from one host to another that a transfer on this rank's ring is of. `bytes`
/// is the length of all that goes there.
inline Chunk block_of(const HostCall& call, const RingSchedule& schedule, RingSchedule::Transfer transfer,
                      std::size_t bytes) {
  const Chunk share = call.share(bytes, 1);
  const auto [begin, count] = schedule.block_of_chunk(transfer, share.count);
  return {share.begin + begin, count};
}

/// Calls send(schedule, transfer) and receive(schedule, transfer) for the blocks of `steps` steps on this
/// rank's ring, and copy_inside() once, while the first blocks are on their way. `longest` is the longest
/// share of a ring, in bytes.
template <class Send, class Receive, class CopyInside>
void move_round(const HostCall& call, int steps, std::size_t longest, Send send, Receive receive,
                CopyInside copy_inside) {
  if (!call.is_on_ring()) return copy_inside();
  const RingSchedule schedule(longest, 1, 1, Communicator::kBlockBytes);
  bool copied = false;
  schedule.run(
      steps, [&](RingSchedule::Transfer transfer) { send(schedule, transfer); },
      [&](RingSchedule::Transfer transfer) {
        if (!std::exchange(copied, true)) copy_inside();
        receive(schedule, transfer);
      });
  if (!copied) copy_inside();
}

/// Copies what every host has to the outputs of all ranks of all hosts. `content(host)` is what the host at a
/// position has; its moves go to all.
void spread(const HostCall& call, const std::function<Content(int host)>& content);

/// Copies from each host to each other one what goes there. `content(from, to)` is asked for hosts of which
/// one is this rank's. `bytes(from, to)` is the length of any content.
void exchange(const HostCall& call, const std::function<Content(int from, int to)>& content,
              const std::function<std::size_t(int from, int to)>& bytes);

}  // namespace vccl
