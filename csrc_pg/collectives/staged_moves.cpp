// Staged moves: each rank copies its input into shared memory, a piece at a time, and whoever wants something
// of it copies it out while the next piece is copied in.
//
// For each piece k a rank does, in this order: in(k), arrive k + 1, await all of them, out(k). What in(k + 1)
// overwrites, others read in out(k - 1), which came before their arriving at k + 1.
#include <algorithm>
#include <cstring>
#include <optional>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/block_copy.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/collectives/parts.hpp"
#include "csrc_pg/collectives/per_rank.hpp"
#include "csrc_pg/collectives/splits.hpp"
#include "csrc_pg/collectives/staged.hpp"

namespace vccl {

namespace {

// Longer than that of a reduction, which has to keep more of it in the cache.
constexpr std::size_t kMoveBytes = 2 * kPieceBytes;
static_assert(kMoveBytes <= Peers::kScratchBytes / 2);

class StagedMove {
 public:
  StagedMove(Communicator& communicator, const Call& call)
      : peers_(*communicator.peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        input_(static_cast<const std::byte*>(call.input)),
        output_(static_cast<std::byte*>(call.output)),
        lengths_(size_) {}

  /// How many elements each rank gives; called for every rank, in order.
  void gives(std::size_t count) { lengths_.add(count * element_); }

  /// `each(from, wanted)` tells what this rank wants of the input of `from`.
  struct Wanted {
    std::size_t begin = 0, count = 0, place = 0;  // elements: in that input, how many, and in this output
  };
  template <class Each>
  void run(Each each) {
    const std::size_t longest = *std::max_element(lengths_.begin(), lengths_.end());
    const std::size_t pieces = (longest + kMoveBytes - 1) / kMoveBytes;
    check_pieces(pieces);
    if (const Wanted own = each(rank_); own.count > 0) {
      const std::byte* from = input_ + own.begin * element_;
      std::byte* to = output_ + own.place * element_;
      if (from != to) std::memcpy(to, from, own.count * element_);
    }
    if (size_ == 1) return;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      copy_in(piece);
      peers_.arrive(static_cast<std::uint32_t>(piece + 1));
      peers_.await_all(static_cast<std::uint32_t>(piece + 1));
      for (int turn = 1; turn < size_; ++turn) {
        const int from = (rank_ + turn) % size_;
        copy_out(piece, from, each(from));
      }
    }
  }

 private:
  void copy_in(std::size_t piece) {
    const std::size_t begin = std::min(piece * kMoveBytes, lengths_[rank_]);
    const std::size_t length = std::min(kMoveBytes, lengths_[rank_] - begin);
    if (length > 0) copy_over_shared(half_of(peers_, rank_, piece), input_ + begin, length);
  }

  void copy_out(std::size_t piece, int from, Wanted wanted) {
    const std::size_t first = piece * kMoveBytes, wanted_begin = wanted.begin * element_;
    const std::size_t begin = std::max(first, wanted_begin);
    const std::size_t end = std::min(first + kMoveBytes, wanted_begin + wanted.count * element_);
    if (begin < end)
      std::memcpy(output_ + wanted.place * element_ + (begin - wanted_begin),
                  half_of(peers_, from, piece) + (begin - first), end - begin);
  }

  Peers& peers_;
  const int rank_, size_;
  const std::size_t element_;
  const std::byte* const input_;
  std::byte* const output_;
  PerRank<std::size_t> lengths_;
};

}  // namespace

void staged_broadcast(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  for (int rank = 0; rank < communicator.size(); ++rank) move.gives(rank == call.root ? call.count : 0);
  move.run([&](int from) { return StagedMove::Wanted{0, from == call.root ? call.count : 0, 0}; });
}

void staged_all_gather(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const Parts parts(call.output_counts, call.count, communicator.size());
  for (int rank = 0; rank < communicator.size(); ++rank) move.gives(parts.count(rank));
  move.run([&](int from) { return StagedMove::Wanted{0, parts.count(from), parts.begin(from)}; });
}

void staged_gather(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const bool is_root = communicator.rank() == call.root;
  for (int rank = 0; rank < communicator.size(); ++rank) move.gives(rank == call.root ? 0 : call.count);
  move.run([&](int from) {
    return StagedMove::Wanted{0, is_root ? call.count : 0, std::size_t(from) * call.count};
  });
}

void staged_scatter(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const auto size = std::size_t(communicator.size()), own = std::size_t(communicator.rank()) * call.count;
  for (int rank = 0; rank < communicator.size(); ++rank)
    move.gives(rank == call.root ? size * call.count : 0);
  move.run([&](int from) { return StagedMove::Wanted{own, from == call.root ? call.count : 0, 0}; });
}

void staged_all_to_all(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const Splits splits(*communicator.peers(), communicator, call);
  const int size = communicator.size(), own = communicator.rank();
  for (int rank = 0; rank < size; ++rank) move.gives(splits.place_in_input(rank, size));
  move.run([&](int from) {
    return StagedMove::Wanted{splits.place_in_input(from, own), splits.count(from, own),
                              splits.place_in_output(from, own)};
  });
}

}  // namespace vccl
