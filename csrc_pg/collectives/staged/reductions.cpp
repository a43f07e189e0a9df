// Staged reduce_scatter and reduce: each rank copies what others reduce of its input into its slots, a block
// at a time, and each reduces its chunk from all slots and its own input.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/staged/staged.hpp"
#include "csrc_pg/collectives/staged/staged_pipeline.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {

namespace {

// With PREMUL_SUM, a rank's factor lies at the end of each of its slots.
constexpr std::size_t kFactorBytes = 64;

class StagedReduction {
 public:
  StagedReduction(Communicator& communicator, const Call& call)
      : call_(call),
        peers_(*communicator.all_peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        input_(static_cast<const std::byte*>(call.input)),
        output_(static_cast<std::byte*>(call.output)),
        reduction_(call, size_) {}

  /// Reduces everything. `chunk_of(rank)` is the chunk of the inputs that a rank reduces, of at most
  /// `longest` elements. `reader` is the only rank that reduces, or kEverybody.
  template <class ChunkOf>
  void run(int reader, std::size_t longest, ChunkOf chunk_of) {
    const std::size_t per_slot = reader == kEverybody ? std::size_t(size_) - 1 : 1;
    const bool is_reader = reader == kEverybody || reader == rank_;
    const std::size_t factor_bytes = has_factors() ? kFactorBytes : 0;
    const std::size_t most = (StagedPipeline::kMostBytes - factor_bytes) / per_slot;
    const Blocks blocks(longest * element_, longest_block(longest * element_, most, reader != kEverybody));
    const std::size_t slot_bytes = per_slot * blocks.length() + factor_bytes;
    StagedPipeline pipeline(peers_, rank_, slot_bytes, is_reader ? kEverybody : kNobody,
                            reader == rank_ ? kNobody : reader);
    const auto offset_in_slot = [&](int from, int to) {
      return per_slot == 1 ? 0 : block_in_slot(from, to) * blocks.length();
    };
    pipeline.run(
        blocks.count(),
        [&](std::size_t k) {
          std::byte* const slot = pipeline.slot(rank_, k);
          for (int distance = 1; distance < size_; ++distance) {
            const int to = (rank_ + distance) % size_;
            if (reader != kEverybody && to != reader) continue;
            const Chunk theirs = chunk_of(to);
            const auto [begin, bytes] = blocks.of(k, theirs.count * element_);
            if (bytes > 0)
              copy_to_slot(slot + offset_in_slot(rank_, to), input_ + theirs.begin * element_ + begin, bytes);
          }
          if (has_factors())
            std::memcpy(slot + slot_bytes - kFactorBytes, &call_.factor, sizeof call_.factor);
        },
        [&](std::size_t k) {
          const Chunk own = chunk_of(rank_);
          const auto [begin, bytes] = blocks.of(k, own.count * element_);
          if (bytes == 0) return;
          PerRank<const std::byte*> inputs(size_);
          for (int rank = 0; rank < size_; ++rank) {
            std::byte* const slot = pipeline.slot(rank, k);
            inputs.add(rank == rank_ ? input_ + own.begin * element_ + begin
                                     : slot + offset_in_slot(rank, rank_));
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
  const Chunks chunks(call.input_counts, call.count, communicator.size());
  if (communicator.size() == 1) {
    if (chunks.total() > 0) reduce_alone(call, chunks.total(), call.input, call.output);
    return;
  }
  StagedReduction(communicator, call).run(kEverybody, chunks.longest(), [&](int rank) {
    return Chunk{chunks.begin(rank), chunks.count(rank)};
  });
}

void staged_reduce(Communicator& communicator, const Call& call) {
  if (communicator.size() == 1) {
    if (call.count > 0) reduce_alone(call, call.count, call.input, call.output);
    return;
  }
  StagedReduction(communicator, call).run(call.root, call.count, [&](int rank) {
    return Chunk{0, rank == call.root ? call.count : 0};
  });
}

}  // namespace vccl
