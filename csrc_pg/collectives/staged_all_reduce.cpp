// Staged all_reduce: of a piece of every input, what others reduce is copied into shared memory; each rank
// reduces its share of the piece, its own input in place, and leaves the result in its output and in shared
// memory, where its input's share would be; and all copy the others' results out. The next piece is copied in
// meanwhile.
//
// For each piece k a rank does, in this order: in(k), arrive 2k + 1, await all of them, reduce(k), arrive 2k
// + 2, in(k + 1), arrive 2k + 3, await all 2k + 2, out(k). What in(k + 2) overwrites, others read in
// reduce(k), which they had done when this rank came to out(k). It does not touch what out(k) reads, since a
// share lies at the same place in every piece. What reduce(k + 2) overwrites, others read in out(k), which
// came before their arriving at 2k + 5.
//
// In place too a rank reads nothing that it has overwritten: reduce(k) and out(k) write to piece k of its
// output, whose input the one reads as it writes, and in(k) has copied before.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/many_reduction.hpp"
#include "csrc_pg/collectives/staged.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {

namespace {

// A half of the scratch memory holds a piece, and at its end PREMUL_SUM's factor.
constexpr std::size_t kHalf = Peers::kScratchBytes / 2, kFactorBytes = 64, kFactor = kHalf - kFactorBytes;
// A result is copied on while it is in the first-level cache.
constexpr std::size_t kBlockBytes = 16 * 1024;

class StagedAllReduce {
 public:
  StagedAllReduce(Communicator& communicator, const Call& call)
      : call_(call),
        peers_(*communicator.peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        pieces_(call.count * element_, has_factors() ? kFactor : kHalf),
        reduction_(call, size_) {}

  void run() {
    if (pieces_.count() > 0) copy_in(0);
    for (std::size_t piece = 0; piece < pieces_.count(); ++piece) {
      const auto phase = static_cast<std::uint32_t>(2 * piece + 1);
      peers_.await_all(phase);
      reduce(piece);
      peers_.arrive(phase + 1);
      if (piece + 1 < pieces_.count()) copy_in(piece + 1);
      peers_.await_all(phase + 1);
      copy_out(piece);
    }
  }

 private:
  std::byte* half_of(int rank, std::size_t piece) const { return peers_.scratch(rank) + piece % 2 * kHalf; }

  bool has_factors() const { return call_.op == ReduceOp::premul_sum; }
  std::size_t bytes_of(std::size_t piece) const { return pieces_.of(piece, call_.count * element_).bytes; }

  /// A rank's share of a piece, in bytes from the beginning of the piece. Short where the last piece is.
  Pieces::Range share(std::size_t piece, int rank) const {
    const auto [begin, count] = share_of(pieces_.length() / element_, element_, rank, size_);
    const std::size_t bytes = bytes_of(piece), from = std::min(begin * element_, bytes);
    return {from, std::min((begin + count) * element_, bytes) - from};
  }
  std::size_t offset(std::size_t piece) const { return piece * pieces_.length(); }

  void copy_in(std::size_t piece) {
    std::byte* half = half_of(rank_, piece);
    const auto* input = static_cast<const std::byte*>(call_.input) + offset(piece);
    // All but this rank's own share: what lies before it, and what lies behind.
    const auto [begin, bytes] = share(piece, rank_);
    const std::size_t end = begin + bytes, all = bytes_of(piece);
    if (begin > 0) copy_to_slot(half, input, begin);
    if (end < all) copy_to_slot(half + end, input + end, all - end);
    if (has_factors()) std::memcpy(half + kFactor, &call_.factor, sizeof call_.factor);
    peers_.arrive(static_cast<std::uint32_t>(2 * piece + 1));
  }

  void reduce(std::size_t piece) {
    const auto [begin, bytes] = share(piece, rank_);
    if (bytes == 0) return;
    const std::size_t at = offset(piece) + begin;
    PerRank<const std::byte*> inputs(size_);
    for (int rank = 0; rank < size_; ++rank) {
      const std::byte* half = half_of(rank, piece);
      inputs.add(rank == rank_ ? static_cast<const std::byte*>(call_.input) + at : half + begin);
      if (!has_factors()) continue;
      double factor = 0;
      std::memcpy(&factor, half + kFactor, sizeof factor);
      reduction_.set_factor(rank, factor);
    }
    std::byte* const output = static_cast<std::byte*>(call_.output) + at;
    std::byte* const results = half_of(rank_, piece) + begin;
    for (std::size_t done = 0; done < bytes; done += kBlockBytes) {
      const std::size_t block = std::min(kBlockBytes, bytes - done);
      reduction_(output + done, inputs.data(), block / element_);
      if (size_ > 1) copy_to_slot(results + done, output + done, block);
      for (auto& input : inputs) input += block;
    }
  }

  void copy_out(std::size_t piece) {
    auto* output = static_cast<std::byte*>(call_.output) + offset(piece);
    // In place, these lines are in the cache still, since copy_in() has read them.
    const bool leave = call_.input != call_.output && leave_caches(call_.count * element_, size_);
    for (int turn = 1; turn < size_; ++turn) {
      const int rank = (rank_ + turn) % size_;
      const auto [begin, bytes] = share(piece, rank);
      pull(output + begin, half_of(rank, piece) + begin, bytes, leave);
    }
  }

  const Call& call_;
  Peers& peers_;
  const int rank_, size_;
  const std::size_t element_;
  const Pieces pieces_;
  ManyReduction reduction_;
};

}  // namespace

void staged_all_reduce(Communicator& communicator, const Call& call) {
  StagedAllReduce(communicator, call).run();
}

}  // namespace vccl
