// Staged reduce_scatter and reduce: each rank copies what others want of its input into its slots, a piece at
// a time, and each reduces what it wants from all of them and its own input.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/chain_reduction.hpp"
#include "csrc_pg/collectives/many_reduction.hpp"
#include "csrc_pg/collectives/parts.hpp"
#include "csrc_pg/collectives/staged.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {

namespace {

struct Elements {
  std::size_t begin, count;
};

// PREMUL_SUM: a rank's factor lies at the end of its slots.
constexpr std::size_t kFactorBytes = 64;

class StagedReduction {
 public:
  StagedReduction(Communicator& communicator, const Call& call)
      : call_(call),
        peers_(*communicator.peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        input_(static_cast<const std::byte*>(call.input)),
        output_(static_cast<std::byte*>(call.output)),
        reduction_(call, size_) {}

  /// `wanted(rank)`: which elements of the inputs a rank wants, at most `longest` of them; `taker` alone
  /// wants any, if it is not kEverybody.
  template <class Wanted>
  void run(int taker, std::size_t longest, Wanted wanted) {
    const std::size_t sections = taker == kEverybody ? std::size_t(size_) - 1 : 1;
    const bool is_taker = taker == kEverybody || taker == rank_;
    const std::size_t factor_bytes = has_factors() ? kFactorBytes : 0;
    const std::size_t most = (StagedPipeline::kMostBytes - factor_bytes) / sections;
    const Pieces pieces(longest * element_, longest_piece(longest * element_, most, taker != kEverybody));
    const std::size_t slot_bytes = sections * pieces.length() + factor_bytes;
    StagedPipeline pipeline(peers_, rank_, slot_bytes, is_taker ? kEverybody : kNobody,
                            taker == rank_ ? kNobody : taker);
    const auto section = [&](int from, int to) {
      return sections == 1 ? 0 : section_of(from, to) * pieces.length();
    };
    pipeline.run(
        pieces.count(),
        [&](std::size_t k) {
          std::byte* const slot = pipeline.slot(rank_, k);
          for (int turn = 1; turn < size_; ++turn) {
            const int to = (rank_ + turn) % size_;
            if (taker != kEverybody && to != taker) continue;
            const Elements theirs = wanted(to);
            const auto [begin, bytes] = pieces.of(k, theirs.count * element_);
            if (bytes > 0)
              copy_to_slot(slot + section(rank_, to), input_ + theirs.begin * element_ + begin, bytes);
          }
          if (has_factors())
            std::memcpy(slot + slot_bytes - kFactorBytes, &call_.factor, sizeof call_.factor);
        },
        [&](std::size_t k) {
          const Elements own = wanted(rank_);
          const auto [begin, bytes] = pieces.of(k, own.count * element_);
          if (bytes == 0) return;
          PerRank<const std::byte*> inputs(size_);
          for (int rank = 0; rank < size_; ++rank) {
            std::byte* const slot = pipeline.slot(rank, k);
            inputs.add(rank == rank_ ? input_ + own.begin * element_ + begin : slot + section(rank, rank_));
            double factor = call_.factor;
            if (has_factors() && rank != rank_)
              std::memcpy(&factor, slot + slot_bytes - kFactorBytes, sizeof factor);
            if (has_factors()) reduction_.set_factor(rank, factor);
          }
          reduction_(output_ + begin, inputs.data(), bytes / element_);
        });
  }

 private:
  bool has_factors() const { return call_.op == ReduceOp::premul_sum; }

  const Call& call_;
  Peers& peers_;
  const int rank_, size_;
  const std::size_t element_;
  const std::byte* const input_;
  std::byte* const output_;
  ManyReduction reduction_;
};

}  // namespace

void staged_reduce_scatter(Communicator& communicator, const Call& call) {
  const Parts parts(call.input_counts, call.count, communicator.size());
  if (communicator.size() == 1) {
    if (parts.total() > 0) reduce_alone(call, parts.total(), call.input, call.output);
    return;
  }
  StagedReduction(communicator, call).run(kEverybody, parts.longest(), [&](int rank) {
    return Elements{parts.begin(rank), parts.count(rank)};
  });
}

void staged_reduce(Communicator& communicator, const Call& call) {
  if (communicator.size() == 1) {
    if (call.count > 0) reduce_alone(call, call.count, call.input, call.output);
    return;
  }
  StagedReduction(communicator, call).run(call.root, call.count, [&](int rank) {
    return Elements{0, rank == call.root ? call.count : 0};
  });
}

}  // namespace vccl
