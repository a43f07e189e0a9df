// Staged all_reduce: a piece of every input is copied into shared memory, each rank reduces its share of it,
// and all copy the results out. The next piece is copied in meanwhile.
//
// For each piece k a rank does, in this order: in(k), arrive 2k + 1, await all of them, reduce(k), arrive 2k
// + 2, in(k + 1), arrive 2k + 3, await all 2k + 2, out(k). What in(k + 1) overwrites, others read in reduce(k
// - 1), which they had done when this rank came to out(k - 1). What reduce(k + 1) overwrites, others read in
// out(k - 1), which came before their arriving at 2k + 3.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/block_copy.hpp"
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/many_reduction.hpp"
#include "csrc_pg/collectives/staged.hpp"

namespace vccl {

namespace {

// In a half: the piece, the results of this rank's share of it, and PREMUL_SUM's factor.
constexpr std::size_t kResults = kPieceBytes, kFactor = 2 * kPieceBytes;
static_assert(kFactor + sizeof(double) <= Peers::kScratchBytes / 2);

class StagedAllReduce {
 public:
  StagedAllReduce(Communicator& communicator, const Call& call)
      : call_(call),
        peers_(*communicator.peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        piece_(kPieceBytes / element_),
        pieces_((call.count + piece_ - 1) / piece_),
        reduction_(call, size_) {
    check_pieces(pieces_);
  }

  void run() {
    if (pieces_ > 0) copy_in(0);
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      const auto phase = static_cast<std::uint32_t>(2 * piece + 1);
      peers_.await_all(phase);
      reduce(piece);
      peers_.arrive(phase + 1);
      if (piece + 1 < pieces_) copy_in(piece + 1);
      peers_.await_all(phase + 1);
      copy_out(piece);
    }
  }

 private:
  std::size_t count(std::size_t piece) const { return std::min(piece_, call_.count - piece * piece_); }

  void copy_in(std::size_t piece) {
    std::byte* half = half_of(peers_, rank_, piece);
    const auto* input = static_cast<const std::byte*>(call_.input);
    copy_over_shared(half, input + piece * piece_ * element_, count(piece) * element_);
    if (call_.op == ReduceOp::premul_sum) std::memcpy(half + kFactor, &call_.factor, sizeof call_.factor);
    peers_.arrive(static_cast<std::uint32_t>(2 * piece + 1));
  }

  void reduce(std::size_t piece) {
    const auto [begin, length] = share_of(count(piece), element_, rank_, size_);
    if (length == 0) return;
    PerRank<const std::byte*> inputs(size_);
    for (int rank = 0; rank < size_; ++rank) {
      const std::byte* half = half_of(peers_, rank, piece);
      inputs.add(half + begin * element_);
      double factor = 0;
      std::memcpy(&factor, half + kFactor, sizeof factor);
      if (call_.op == ReduceOp::premul_sum) reduction_.set_factor(rank, factor);
    }
    reduction_(half_of(peers_, rank_, piece) + kResults, inputs.data(), length);
  }

  void copy_out(std::size_t piece) {
    auto* output = static_cast<std::byte*>(call_.output) + piece * piece_ * element_;
    for (int turn = 0; turn < size_; ++turn) {
      const int rank = (rank_ + turn) % size_;
      const auto [begin, length] = share_of(count(piece), element_, rank, size_);
      if (length > 0)
        std::memcpy(output + begin * element_, half_of(peers_, rank, piece) + kResults, length * element_);
    }
  }

  const Call& call_;
  Peers& peers_;
  const int rank_, size_;
  const std::size_t element_, piece_, pieces_;
  ManyReduction reduction_;
};

}  // namespace

void staged_all_reduce(Communicator& communicator, const Call& call) {
  StagedAllReduce(communicator, call).run();
}

}  // namespace vccl
