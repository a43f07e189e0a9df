// Staged all_reduce: each rank copies a block of its input into shared memory, except for its own chunk of
// the block, which no other rank reduces. It reduces its chunk of the block from all ranks' slots and its own
// input, and writes the result to its output and to shared memory, where its input's chunk would be. Then all
// ranks copy the others' results out. Meanwhile the next block is copied in.
//
// For each block k a rank does, in this order: in(k), arrive 2k + 1, await 2k + 1 of all, reduce(k), arrive
// 2k + 2, in(k + 1), arrive 2k + 3, await 2k + 2 of all, out(k). What in(k + 2) overwrites, others read in
// reduce(k), which they had done when this rank came to out(k). It does not touch what out(k) reads, since a
// chunk lies at the same place in every block. What reduce(k + 2) overwrites, others read in out(k), which
// came before they arrived at 2k + 5.
//
// In place, too, a rank reads nothing that it has overwritten: reduce(k) and out(k) write to block k of the
// output. reduce(k) reads the same elements of the input as it writes, and in(k) has copied the others
// before.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/buffers/per_rank.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/staged/staged.hpp"
#include "csrc_pg/collectives/staged/staged_pipeline.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {

namespace {

// Each half of the scratch memory is a slot for a block, and for PREMUL_SUM's factor at its end.
constexpr std::size_t kSlotBytes = Peers::kScratchBytes / 2, kFactorBytes = 64;
constexpr std::size_t kFactorOffset = kSlotBytes - kFactorBytes;
// The bytes that are reduced before they are copied on, while they are in the first-level cache.
constexpr std::size_t kCachedBytes = 16 * 1024;

class StagedAllReduce {
 public:
  StagedAllReduce(Communicator& communicator, const Call& call)
      : call_(call),
        peers_(*communicator.all_peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        blocks_(call.count * element_, has_factors() ? kFactorOffset : kSlotBytes),
        reduction_(call, size_) {}

  void run() {
    if (blocks_.count() > 0) copy_in(0);
    for (std::size_t block = 0; block < blocks_.count(); ++block) {
      const auto phase = static_cast<std::uint32_t>(2 * block + 1);
      peers_.await_all(phase);
      reduce(block);
      peers_.arrive(phase + 1);
      if (block + 1 < blocks_.count()) copy_in(block + 1);
      peers_.await_all(phase + 1);
      copy_out(block);
    }
  }

 private:
  std::byte* slot_of(int rank, std::size_t block) const {
    return peers_.scratch(rank) + block % 2 * kSlotBytes;
  }

  bool has_factors() const { return call_.op == ReduceOp::premul_sum; }
  std::size_t bytes_of(std::size_t block) const { return blocks_.of(block, call_.count * element_).bytes; }

  /// Returns a rank's chunk of a block, in bytes from the beginning of the block. The chunks of the last
  /// block may be short.
  Blocks::Block chunk_of(std::size_t block, int rank) const {
    const auto [begin, count] = even_chunk(blocks_.length() / element_, element_, rank, size_);
    const std::size_t bytes = bytes_of(block), from = std::min(begin * element_, bytes);
    return {from, std::min((begin + count) * element_, bytes) - from};
  }
  std::size_t offset(std::size_t block) const { return block * blocks_.length(); }

  void copy_in(std::size_t block) {
    std::byte* slot = slot_of(rank_, block);
    const auto* input = static_cast<const std::byte*>(call_.input) + offset(block);
    // This copies what lies before this rank's own chunk, and what lies behind it.
    const auto [begin, bytes] = chunk_of(block, rank_);
    const std::size_t end = begin + bytes, all = bytes_of(block);
    if (begin > 0) copy_to_slot(slot, input, begin);
    if (end < all) copy_to_slot(slot + end, input + end, all - end);
    if (has_factors()) std::memcpy(slot + kFactorOffset, &call_.factor, sizeof call_.factor);
    peers_.arrive(static_cast<std::uint32_t>(2 * block + 1));
  }

  void reduce(std::size_t block) {
    const auto [begin, bytes] = chunk_of(block, rank_);
    if (bytes == 0) return;
    const std::size_t at = offset(block) + begin;
    PerRank<const std::byte*> inputs(size_);
    for (int rank = 0; rank < size_; ++rank) {
      const std::byte* slot = slot_of(rank, block);
      inputs.add(rank == rank_ ? static_cast<const std::byte*>(call_.input) + at : slot + begin);
      if (!has_factors()) continue;
      double factor = 0;
      std::memcpy(&factor, slot + kFactorOffset, sizeof factor);
      reduction_.set_factor(rank, factor);
    }
    std::byte* const output = static_cast<std::byte*>(call_.output) + at;
    std::byte* const results = slot_of(rank_, block) + begin;
    for (std::size_t done = 0; done < bytes; done += kCachedBytes) {
      const std::size_t length = std::min(kCachedBytes, bytes - done);
      reduction_(output + done, inputs.data(), length / element_);
      if (size_ > 1) copy_to_slot(results + done, output + done, length);
      for (auto& input : inputs) input += length;
    }
  }

  void copy_out(std::size_t block) {
    auto* output = static_cast<std::byte*>(call_.output) + offset(block);
    // In place, these lines are still in the cache, since copy_in() has read them.
    const bool leave = call_.input != call_.output && leave_caches(call_.count * element_, size_);
    for (int distance = 1; distance < size_; ++distance) {
      const int rank = (rank_ + distance) % size_;
      const auto [begin, bytes] = chunk_of(block, rank);
      pull(output + begin, slot_of(rank, block) + begin, bytes, leave);
    }
  }

  const Call& call_;
  Peers& peers_;
  const int rank_, size_;
  const std::size_t element_;
  const Blocks blocks_;
  ManyReduction reduction_;
};

}  // namespace

void staged_all_reduce(Communicator& communicator, const Call& call) {
  StagedAllReduce(communicator, call).run();
}

}  // namespace vccl
