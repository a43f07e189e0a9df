// What the staged algorithms have in common. Memory that peers cannot map goes through every rank's scratch
// memory, a block at a time. Peers never touch a rank's own buffers, so an operation may end while they still
// read its scratch memory. A rank writes to that again only after the next operation has begun, which waits
// until all ranks have come to it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/text.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Says how a buffer, or each of its chunks, is cut into blocks that fit into a slot.
///
/// The blocks are of about equal length, so that no short one costs synchronisations of its own at the end.
class Blocks {
 public:
  /// Cuts `bytes` bytes into blocks of at most `most` bytes, which begin at multiples of 64 bytes, so that no
  /// element is cut. Throws Error(unsupported) for more blocks than an operation has phases.
  Blocks(std::size_t bytes, std::size_t most) {
    most = most / kLine * kLine;
    count_ = most == 0 ? kMost + 1 : (bytes + most - 1) / most;
    if (count_ > kMost)
      throw Error(ErrorCode::unsupported, base::text("a chunk of ", bytes, " bytes needs ", count_,
                                                     " blocks, and a staged algorithm has at most ", kMost,
                                                     "; set VCCL_ALGO on all ranks to take the ring"));
    length_ = count_ == 0 ? most : ((bytes + count_ - 1) / count_ + kLine - 1) / kLine * kLine;
  }

  std::size_t count() const { return count_; }
  /// Returns the bytes of the longest block.
  std::size_t length() const { return length_; }
  struct Block {
    std::size_t begin, bytes;
  };
  /// Returns the place of block `k` in a chunk of `bytes` bytes, which may be shorter than the longest.
  Block of(std::size_t k, std::size_t bytes) const {
    const std::size_t begin = std::min(k * length_, bytes);
    return {begin, std::min(length_, bytes - begin)};
  }

 private:
  static constexpr std::size_t kLine = 64, kMost = Peers::kDone / 2 - 8;
  std::size_t count_, length_;
};

/// Returns the length of blocks for chunks of up to `bytes`, where a slot has room for `most`. If some ranks
/// only write and others only read, shorter blocks fill the pipeline sooner. If all do both there is nothing
/// to fill, and longer blocks cost fewer synchronisations.
inline std::size_t longest_block(std::size_t bytes, std::size_t most, bool is_one_way) {
  constexpr std::size_t kShortest = 16 * 1024, kLongest = 128 * 1024;
  return is_one_way ? std::min(std::clamp(bytes / 8, kShortest, kLongest), most) : most;
}

/// Returns which block in a slot of `writer` is for `reader`, if the slot has one for each other rank: they
/// are in the order of ranks.
inline std::size_t block_in_slot(int writer, int reader) {
  return std::size_t(reader < writer ? reader : reader - 1);
}

/// Stand for the ranks that another rank exchanges blocks with, where that is not a single one.
inline constexpr int kNobody = -1, kEverybody = -2;

/// Sends blocks through slots. The scratch memory is divided into as many slots as it has room for, which are
/// used in turn. All of them are used however short the blocks are, since by the time a slot is written again
/// no reader has it in its nearest cache any more: with 2 ranks that share a cache, 8 GB/s go through 256 KiB
/// and 17 through 1 MiB.
///
/// For each block k a rank does, in this order: write(k), arrive k + 1, await k + 1 of the writers that it
/// reads from, read(k). So phase k + 1 of a rank says that its block k is there, and that it has done its
/// reads up to k - 1. With s slots, write(k) overwrites block k - s. So before it, a writer awaits phase k -
/// s + 2 of its readers.
class StagedPipeline {
 public:
  static constexpr std::size_t kLeastSlots = 4;
  static constexpr std::size_t kMostBytes = Peers::kScratchBytes / kLeastSlots;

  /// Divides the scratch memory into slots of `slot_bytes`, at most kMostBytes and a multiple of 64.
  /// `writers` are the ranks that this rank, `own`, reads from, and `readers` those that read from it: one
  /// rank, kNobody or kEverybody.
  StagedPipeline(Peers& peers, int own, std::size_t slot_bytes, int writers, int readers)
      : peers_(peers),
        own_(own),
        slot_bytes_(slot_bytes),
        slots_(Peers::kScratchBytes / slot_bytes),
        writers_(writers),
        readers_(readers) {}

  /// Returns the slot of a rank that block number `block` goes through.
  std::byte* slot(int rank, std::size_t block) const {
    return peers_.scratch(rank) + block % slots_ * slot_bytes_;
  }

  /// Calls write(k) and read(k) for each of `blocks` blocks, where this rank writes and reads.
  template <class Write, class Read>
  void run(std::size_t blocks, Write write, Read read) {
    for (std::size_t k = 0; k < blocks; ++k) {
      if (readers_ != kNobody) {
        if (k >= slots_) await(readers_, k - slots_ + 2);
        write(k);
      }
      peers_.arrive(static_cast<std::uint32_t>(k + 1));
      if (writers_ == kNobody) continue;
      await(writers_, k + 1);
      read(k);
    }
  }

 private:
  void await(int whom, std::size_t phase) {
    if (whom == kEverybody)
      peers_.await_all(static_cast<std::uint32_t>(phase));
    else if (whom != own_)
      peers_.await(whom, static_cast<std::uint32_t>(phase));
  }

  Peers& peers_;
  const int own_;
  const std::size_t slot_bytes_, slots_;
  const int writers_, readers_;
};

}  // namespace vccl
