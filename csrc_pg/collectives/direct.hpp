// What the direct algorithms have in common: every rank's buffers, addressed in place, between two
// synchronisations.
//
// The first one is the operation's gate: every input is written, and every output may be. Then each rank does
// its share of the work, reading and writing the memory of any rank; no element is written by two ranks, and
// none is read by one rank and written by another. The second one says that all have done their share:
// outputs are complete, and inputs may be overwritten.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/collectives/parts.hpp"
#include "csrc_pg/collectives/per_rank.hpp"

namespace vccl {

/// The `index`-th of `size` about equal pieces of `count` elements. None has a cache line in common with
/// another where the buffers begin at one.
struct Share {
  std::size_t begin, count;
};
Share share_of(std::size_t count, std::size_t element, int index, int size);

class Direct {
 public:
  /// Inside an operation whose memory is all mapped. A peer's buffer that has not the length which follows
  /// from the call is the Error(protocol) of everybody.
  Direct(Communicator& communicator, const Call& call);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t element() const { return element_; }
  const std::byte* input(int rank) const { return inputs_[rank]; }
  std::byte* output(int rank) const { return outputs_[rank]; }
  /// Of all ranks, in their order, `offset` bytes from their beginning.
  PerRank<const std::byte*> inputs(std::size_t offset) const;
  /// Of all ranks, in the order of ranks_from(rank).
  PerRank<std::byte*> outputs(int rank, std::size_t offset) const;
  /// All ranks, from `rank` on, so that no two shares are busy with the same one.
  PerRank<int> ranks_from(int rank) const;
  Peers& peers() const { return peers_; }
  /// PREMUL_SUM: as that rank announced it.
  double factor(int rank) const;

  /// A rank's share of `count` elements.
  Share share(int rank, std::size_t count) const { return share_of(count, element_, rank, size_); }

  /// The work and the second synchronisation. Calls work(rank), which does the share of `rank`, for this
  /// rank; or, where ranks outnumber cores, for whichever shares nobody has begun yet. Then those ranks that
  /// the cores happen to run do all the work, and the others find it done when they get their turn, in place
  /// of one turn for their work and another to learn that all is done. `waits`: whether this rank's output or
  /// input is in a share other than its own.
  template <class Work>
  void share_out(Work work, bool waits = true) {
    if (peers_.crowded()) {
      for (int rank; (rank = peers_.claim_share()) >= 0; peers_.deliver_share()) work(rank);
      peers_.await_shares();
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

/// Whether ranks that each did their own part would wait for the one with the longest, so long that it is
/// better to divide the work.
bool are_shared(const Direct& direct, const Parts& parts);

/// The number that a rank announces with a call that shows its memory.
std::uint64_t note_of(const Call& call);

}  // namespace vccl
