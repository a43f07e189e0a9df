// How a ring algorithm cuts a buffer, and in which order its blocks are sent.
#pragma once

#include <algorithm>
#include <cstddef>

#include "transport/communicator.hpp"

namespace vccl {

/// Returns the longest blocks of a ring, in bytes.
///
/// On one host, measured from 16 to 256 KiB, the length makes no difference to two ranks that share a cache;
/// two that do not are a tenth slower with the shortest blocks. A pass of three blocks of 128 KiB a rank
/// stays in the second-level cache. Between hosts every block costs system calls and switches of threads, so
/// blocks are as long as the transport allows.
inline std::size_t ring_block_bytes(const Communicator& communicator) {
  return communicator.host_count() > 1 ? Communicator::kBlockBytes : 128 * 1024;
}

/// A buffer goes round the ring in passes. What one pass takes is cut into a chunk for each position of the
/// ring, and a chunk into a few blocks.
///
/// A pass goes all the way round before the next one follows closely. So each step finds in the cache what
/// the step before it wrote, however long the buffer is, and a chunk never has more blocks than there are
/// slots.
///
/// Everything follows from numbers on which the ranks agree. Blocks at the ends may be short or empty; empty
/// blocks are neither sent nor expected.
class RingSchedule {
 public:
  /// A block's place in a buffer or a chunk, in elements.
  struct Block {
    std::size_t begin, count;
  };
  /// One block's sending or receiving: the block's number within its chunk, in one step of one pass.
  struct Transfer {
    std::size_t pass;
    int step, block;
  };

  // The most blocks of a chunk, all of which may be sent before the neighbour has released one. It is one
  // less than there are slots, so that nobody waits for a slot for ever. Suppose that all ranks do: each
  // holds a block that it took and waits for a slot to put its sum into. Then each rank's neighbour would be
  // at least one block behind it, all around the ring, which cannot be.
  static constexpr int kMaxBlocks = Communicator::kSlots - 1;
  // A further block of less than this costs more for its two flags than it gains by overlapping.
  static constexpr std::size_t kMinBlockBytes = 32 * 1024;
  static constexpr std::size_t kCacheLine = 64;

  /// Cuts `count` elements of `element_size` bytes into `chunks` chunks, in blocks of at most
  /// `max_block_bytes`.
  RingSchedule(std::size_t count, int chunks, std::size_t element_size, std::size_t max_block_bytes)
      : count_(count) {
    // In elements. Chunks are whole lines, so that no chunk begins in a line that a peer writes to.
    const std::size_t line = kCacheLine / element_size;
    const std::size_t per_pass = static_cast<std::size_t>(chunks);
    const std::size_t longest = max_block_bytes / element_size * kMaxBlocks * per_pass;
    passes_ = divide_up(count, longest);
    pass_ = passes_ == 0 ? 0 : round_up(divide_up(count, passes_), line * per_pass);
    if (pass_ > longest) pass_ = longest;
    chunk_ = pass_ / per_pass;
    blocks_ =
        static_cast<int>(std::clamp<std::size_t>(chunk_ * element_size / kMinBlockBytes, 1, kMaxBlocks));
    block_ = round_up(divide_up(chunk_, static_cast<std::size_t>(blocks_)), line);
  }

  /// Returns a block's place in the buffer.
  Block block(std::size_t pass, int chunk, int block) const {
    const std::size_t first = pass * pass_ + static_cast<std::size_t>(chunk) * chunk_;
    const std::size_t from = std::min(first + static_cast<std::size_t>(block) * block_, count_);
    const std::size_t to = std::min({first + chunk_, from + block_, count_});
    return {from, to > from ? to - from : 0};
  }

  /// Returns a block's place in a chunk of `count` elements, of a schedule that was made with one chunk of
  /// the longest chunk's length.
  Block block_of_chunk(Transfer transfer, std::size_t count) const {
    const auto [begin, length] = block(transfer.pass, 0, transfer.block);
    const std::size_t from = std::min(begin, count);
    return {from, std::min(begin + length, count) - from};
  }

  /// Calls `send(transfer)` for every block of every pass and step and, one chunk later, `receive(transfer)`.
  /// What is received in one step is sent in the next, so the send that follows a receive is of the very same
  /// block.
  template <class Send, class Receive>
  void run(int steps, Send send, Receive receive) const {
    const std::size_t total = passes_ * static_cast<std::size_t>(steps) * static_cast<std::size_t>(blocks_);
    const std::size_t ahead = std::min<std::size_t>(static_cast<std::size_t>(blocks_), total);
    for (std::size_t k = 0; k < ahead; ++k) send(transfer(k, steps));
    for (std::size_t k = 0; k < total; ++k) {
      receive(transfer(k, steps));
      if (k + ahead < total) send(transfer(k + ahead, steps));
    }
  }

 private:
  static std::size_t divide_up(std::size_t a, std::size_t b) { return a / b + (a % b != 0); }
  static std::size_t round_up(std::size_t a, std::size_t b) { return divide_up(a, b) * b; }

  Transfer transfer(std::size_t k, int steps) const {
    const std::size_t chunk_step = k / static_cast<std::size_t>(blocks_);
    return {chunk_step / static_cast<std::size_t>(steps),
            static_cast<int>(chunk_step % static_cast<std::size_t>(steps)),
            static_cast<int>(k % static_cast<std::size_t>(blocks_))};
  }

  std::size_t count_;                 // elements of the buffer
  std::size_t passes_;                // number of passes
  std::size_t pass_, chunk_, block_;  // elements of each
  int blocks_;                        // blocks of a chunk
};

}  // namespace vccl
