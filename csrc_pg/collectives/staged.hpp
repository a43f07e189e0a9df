// What the staged algorithms have in common: memory that peers cannot map travels through every rank's
// scratch memory, a piece at a time. Peers never touch a rank's own buffers, so an operation may end while
// they still read its scratch: that is written again only behind the next operation's gate, which nobody
// passes before all have come to it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "transport/communicator.hpp"

namespace vccl {

/// How a buffer, or each of the parts of one, is cut into pieces that fit into a slot.
///
/// Of about equal length, so that no short one costs synchronisations of its own at the end.
class Pieces {
 public:
  /// `bytes` bytes in pieces of at most `most`, which begin at multiples of 64 bytes: no element is cut.
  /// Throws Error(unsupported) for more pieces than an operation has phases.
  Pieces(std::size_t bytes, std::size_t most) {
    most = most / kLine * kLine;
    count_ = most == 0 ? kMost + 1 : (bytes + most - 1) / most;
    if (count_ > kMost)
      throw Error(
          ErrorCode::unsupported,
          "too long a buffer, or too many ranks, for a staged algorithm; use VCCL_ALGO to take the ring");
    length_ = count_ == 0 ? most : ((bytes + count_ - 1) / count_ + kLine - 1) / kLine * kLine;
  }

  std::size_t count() const { return count_; }
  /// Of the longest.
  std::size_t length() const { return length_; }
  /// What piece `k` is of a part of `bytes` bytes, which may be shorter than the longest.
  struct Range {
    std::size_t begin, bytes;
  };
  Range of(std::size_t k, std::size_t bytes) const {
    const std::size_t begin = std::min(k * length_, bytes);
    return {begin, std::min(length_, bytes - begin)};
  }

 private:
  static constexpr std::size_t kLine = 64, kMost = Peers::kDone / 2 - 8;
  std::size_t count_, length_;
};

/// How long a piece is of parts of up to `bytes`, where a slot has room for `most`. Where some ranks only
/// give and others only take, shorter pieces fill the pipeline sooner. Where all do both there is nothing to
/// fill, and longer ones cost fewer synchronisations.
inline std::size_t longest_piece(std::size_t bytes, std::size_t most, bool is_one_way) {
  constexpr std::size_t kShortest = 16 * 1024, kLongest = 128 * 1024;
  return is_one_way ? std::min(std::clamp(bytes / 8, kShortest, kLongest), most) : most;
}

/// Which section of a slot is for whom: they are in the order of ranks, without the giver.
inline std::size_t section_of(int from, int to) {
  return std::size_t(to < from ? to : to - 1);
}

/// Whom a rank has to do with.
inline constexpr int kNobody = -1, kEverybody = -2;

/// Pieces that go through the slots: as many as the scratch memory has room for, used in turn. All of it is
/// used however short the pieces are, since a slot that is written again late is in no reader's nearest cache
/// any more: measured with 2 ranks that share a cache, 8 GB/s through 256 KiB and 17 through 1 MiB.
///
/// For each piece k a rank does, in this order: give(k), arrive k + 1, await k + 1 of those it takes from,
/// take(k). So phase k + 1 of a rank says that its piece k is there, and that it is done with its takes up to
/// k - 1. With s slots give(k) overwrites piece k - s: a rank that gives awaits phase k - s + 2 of those who
/// take from it before.
class StagedPipeline {
 public:
  static constexpr std::size_t kLeastSlots = 4;
  static constexpr std::size_t kMostBytes = Peers::kScratchBytes / kLeastSlots;

  /// Of slots of `slot_bytes`, at most kMostBytes and a multiple of 64. A rank takes from `givers`, and
  /// `takers` take from it: one rank, kNobody or kEverybody.
  StagedPipeline(Peers& peers, int own, std::size_t slot_bytes, int givers, int takers)
      : peers_(peers),
        own_(own),
        slot_bytes_(slot_bytes),
        slots_(Peers::kScratchBytes / slot_bytes),
        givers_(givers),
        takers_(takers) {}

  std::byte* slot(int rank, std::size_t piece) const {
    return peers_.scratch(rank) + piece % slots_ * slot_bytes_;
  }
  std::size_t slot_bytes() const { return slot_bytes_; }

  template <class Give, class Take>
  void run(std::size_t pieces, Give give, Take take) {
    for (std::size_t k = 0; k < pieces; ++k) {
      if (takers_ != kNobody) {
        if (k >= slots_) await(takers_, k - slots_ + 2);
        give(k);
      }
      peers_.arrive(static_cast<std::uint32_t>(k + 1));
      if (givers_ == kNobody) continue;
      await(givers_, k + 1);
      take(k);
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
  const int givers_, takers_;
};

}  // namespace vccl
