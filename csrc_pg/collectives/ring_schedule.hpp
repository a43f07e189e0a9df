// How a ring algorithm cuts a buffer, and in which order its blocks travel.
#pragma once

#include <algorithm>
#include <cstddef>

#include "transport/communicator.hpp"

namespace vccl {

/// A buffer is cut into segments, a segment into one chunk for each position of the ring, a chunk into a few
/// blocks.
///
/// A segment goes all the way round before the next one follows closely. So what one step wrote, the next
/// step finds in the cache, however long the buffer is; and a chunk never has more blocks than there are
/// slots.
///
/// Everything follows from numbers on which the ranks agree. Blocks at the ends may be short or empty; empty
/// ones are neither sent nor expected.
class RingSchedule {
 public:
  struct Range {
    std::size_t begin, count;  // elements
  };
  struct Turn {
    std::size_t segment;
    int step, block;
  };

  // Blocks of a chunk, all of which may be ahead of the neighbour. One less than there are slots: a rank that
  // holds a block it took and waits for a slot to put its sum into then has a neighbour that is at least one
  // block behind it, all around the ring, which cannot be: nobody waits for a slot for ever.
  static constexpr int kMaxBlocks = Communicator::kSlots - 1;
  // Below this length, what a further block overlaps is not worth its two flags.
  static constexpr std::size_t kMinBlockBytes = 32 * 1024;
  static constexpr std::size_t kCacheLine = 64;

  /// `count` elements of `element_size` bytes over `chunks` chunks, in blocks of at most `max_block_bytes`.
  RingSchedule(std::size_t count, int chunks, std::size_t element_size, std::size_t max_block_bytes)
      : count_(count) {
    const std::size_t line = kCacheLine / element_size;  // elements: chunks begin where no peer's writes end
    const std::size_t parts = static_cast<std::size_t>(chunks);
    const std::size_t longest = max_block_bytes / element_size * kMaxBlocks * parts;
    segments_ = divide_up(count, longest);
    segment_ = segments_ == 0 ? 0 : round_up(divide_up(count, segments_), line * parts);
    if (segment_ > longest) segment_ = longest;
    chunk_ = segment_ / parts;
    blocks_ =
        static_cast<int>(std::clamp<std::size_t>(chunk_ * element_size / kMinBlockBytes, 1, kMaxBlocks));
    block_ = round_up(divide_up(chunk_, static_cast<std::size_t>(blocks_)), line);
  }

  std::size_t segments() const { return segments_; }

  /// A block's place in the buffer.
  Range range(std::size_t segment, int chunk, int block) const {
    const std::size_t first = segment * segment_ + static_cast<std::size_t>(chunk) * chunk_;
    const std::size_t from = std::min(first + static_cast<std::size_t>(block) * block_, count_);
    const std::size_t to = std::min({first + chunk_, from + block_, count_});
    return {from, to > from ? to - from : 0};
  }

  /// A block's place in a part of `count` elements: at most as many as the one chunk that the buffer was cut
  /// into.
  Range range_in_part(Turn turn, std::size_t count) const {
    const auto [begin, length] = range(turn.segment, 0, turn.block);
    const std::size_t from = std::min(begin, count);
    return {from, std::min(begin + length, count) - from};
  }

  /// Takes `steps` turns of every block of every segment: `send(turn)`, and, one chunk later,
  /// `receive(turn)`. What is received in one step is sent in the next, so the send that follows a receive is
  /// of the very same block.
  template <class Send, class Receive>
  void run(int steps, Send send, Receive receive) const {
    const std::size_t total = segments_ * static_cast<std::size_t>(steps) * static_cast<std::size_t>(blocks_);
    const std::size_t ahead = std::min<std::size_t>(static_cast<std::size_t>(blocks_), total);
    for (std::size_t k = 0; k < ahead; ++k) send(turn(k, steps));
    for (std::size_t k = 0; k < total; ++k) {
      receive(turn(k, steps));
      if (k + ahead < total) send(turn(k + ahead, steps));
    }
  }

 private:
  static std::size_t divide_up(std::size_t a, std::size_t b) { return a / b + (a % b != 0); }
  static std::size_t round_up(std::size_t a, std::size_t b) { return divide_up(a, b) * b; }

  Turn turn(std::size_t k, int steps) const {
    const std::size_t chunk_step = k / static_cast<std::size_t>(blocks_);
    return {chunk_step / static_cast<std::size_t>(steps),
            static_cast<int>(chunk_step % static_cast<std::size_t>(steps)),
            static_cast<int>(k % static_cast<std::size_t>(blocks_))};
  }

  std::size_t count_, segments_, segment_, chunk_, block_;
  int blocks_;
};

}  // namespace vccl
