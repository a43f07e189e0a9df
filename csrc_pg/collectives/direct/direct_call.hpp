// What the direct algorithms have in common: they address every rank's buffers in place, between two
// synchronisations.
//
// The first synchronisation is the beginning of the operation. After it every input is written, and every
// output may be. Then the ranks do the work, one work item for each rank, and read and write the memory of
// any rank. No element is written by two work items, and none is read by one and written by another. The
// second synchronisation says that all work items are done: outputs are complete, and inputs may be
// overwritten.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/buffers/per_rank.hpp"

namespace vccl {

class DirectCall {
 public:
  /// Must be made inside an operation whose memory is all mapped. Throws Error(protocol) on every rank if a
  /// peer's buffer does not have the length that follows from the call.
  DirectCall(Communicator& communicator, const Call& call);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t element() const { return element_; }
  const std::byte* input(int rank) const { return inputs_[rank]; }
  std::byte* output(int rank) const { return outputs_[rank]; }
  /// Returns `offset` bytes into the input of each rank, in the order of ranks.
  PerRank<const std::byte*> inputs(std::size_t offset) const;
  /// Returns `offset` bytes into the output of each rank, in the order of ranks_from(rank).
  PerRank<std::byte*> outputs(int rank, std::size_t offset) const;
  /// Returns all ranks, from `rank` on, so that no two work items use the same rank's memory at a time.
  PerRank<int> ranks_from(int rank) const;
  Peers& peers() const { return peers_; }
  /// Returns the factor of PREMUL_SUM that a rank announced.
  double factor(int rank) const;

  /// Returns the chunk of `count` elements that a rank's work item has.
  Chunk even_chunk(int rank, std::size_t count) const {
    return vccl::even_chunk(count, element_, rank, size_);
  }

  /// Does the work, and then the second synchronisation. `work(rank)` does the work item of `rank`. It is
  /// called for this rank or, if ranks outnumber cores, for the work items that nobody has begun yet. Then
  /// the ranks that the cores happen to run do all the work, and the other ranks find it done when a core
  /// runs them. Each rank needs one turn of a core, and not a turn for its work and a turn to learn that all
  /// is done. `waits` says whether another rank's work item uses this rank's output or input.
  template <class Work>
  void do_work_items(Work work, bool waits = true) {
    if (peers_.oversubscribed()) {
      for (int rank; (rank = peers_.claim_work_item()) >= 0; peers_.deliver_work_item()) work(rank);
      peers_.await_work_items();
    } else {
      work(rank_);
      peers_.arrive(Peers::kDone);
      if (waits) peers_.await_all(Peers::kDone);
    }
  }

 private:
  const int rank_, size_;
  const std::size_t element_;
  Peers& peers_;
  PerRank<const std::byte*> inputs_;
  PerRank<std::byte*> outputs_;
};

/// Returns whether it is better to divide the work evenly, because ranks that each did their own chunk would
/// wait long for the one with the longest.
bool divides_evenly(const DirectCall& direct, const Chunks& chunks);

/// Returns the number that a rank announces with a call that shows its memory: the bits of PREMUL_SUM's
/// factor.
std::uint64_t factor_bits(const Call& call);

}  // namespace vccl
