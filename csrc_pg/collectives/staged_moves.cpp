// Staged moves: each rank copies what it gives into its slots, a piece at a time, and whoever wants something
// of it copies it out while the next pieces are copied in.
#include <algorithm>
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/parts.hpp"
#include "csrc_pg/collectives/splits.hpp"
#include "csrc_pg/collectives/staged.hpp"
#include "transport/slot_copy.hpp"

namespace vccl {

namespace {

/// What goes from one rank to another. In elements.
struct Part {
  std::size_t begin;  // in the input of the one
  std::size_t count;
  std::size_t place;  // in the output of the other
};

/// What a rank puts into its slots.
enum class Gives {
  one_part,         // the same for all who take from it
  a_part_for_each,  // in sections of a slot, in the order of ranks without its own
};

class StagedMove {
 public:
  StagedMove(Communicator& communicator, const Call& call)
      : peers_(*communicator.peers()),
        rank_(communicator.rank()),
        size_(communicator.size()),
        element_(size_of(call.dtype)),
        input_(static_cast<const std::byte*>(call.input)),
        output_(static_cast<std::byte*>(call.output)) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// `part(from, to)` is what goes from one rank to another that takes from it, or to itself; none is longer
  /// than `longest` elements. `giver`: the one rank that gives, or kEverybody; `taker` likewise.
  template <class PartOf>
  void run(Gives gives, int giver, int taker, std::size_t longest, PartOf part) {
    const bool is_giver = giver == kEverybody || giver == rank_;
    const bool is_taker = taker == kEverybody || taker == rank_;
    if (size_ == 1) {
      keep(part(rank_, rank_), {0, longest * element_});
      return;
    }
    const bool is_one_way = giver != kEverybody || taker != kEverybody;
    const std::size_t sections = gives == Gives::one_part ? 1 : std::size_t(size_) - 1;
    const Pieces pieces(longest * element_,
                        longest_piece(longest * element_, StagedPipeline::kMostBytes / sections, is_one_way));
    const bool gives_others = is_giver && taker != rank_, takes_others = is_taker && giver != rank_;
    StagedPipeline pipeline(peers_, rank_, sections * pieces.length(), takes_others ? giver : kNobody,
                            gives_others ? taker : kNobody);

    const auto keep_piece = [&](std::size_t k) {
      const Part own = part(rank_, rank_);
      keep(own, pieces.of(k, own.count * element_));
    };
    const auto put = [&](std::size_t k, int to, std::size_t section) {
      const Part own = part(rank_, to);
      const auto [begin, bytes] = pieces.of(k, own.count * element_);
      if (bytes > 0)
        copy_to_slot(pipeline.slot(rank_, k) + section * pieces.length(),
                     input_ + own.begin * element_ + begin, bytes);
    };
    const auto give = [&](std::size_t k) {
      if (gives == Gives::one_part) {
        put(k, taker == kEverybody ? (rank_ + 1) % size_ : taker, 0);
      } else {
        for (int turn = 1; turn < size_; ++turn) {
          const int to = (rank_ + turn) % size_;
          put(k, to, section_of(rank_, to));
        }
      }
      if (is_giver && is_taker) keep_piece(k);
    };
    const auto take = [&](std::size_t k) {
      for (int turn = 1; turn < size_; ++turn) {
        const int from = (rank_ + turn) % size_;
        if (giver != kEverybody && from != giver) continue;
        const Part theirs = part(from, rank_);
        const auto [begin, bytes] = pieces.of(k, theirs.count * element_);
        const std::size_t section = gives == Gives::one_part ? 0 : section_of(from, rank_);
        pull(output_ + theirs.place * element_ + begin, pipeline.slot(from, k) + section * pieces.length(),
             bytes, leave_caches(longest * element_, size_));
      }
      if (!gives_others) keep_piece(k);
    };
    pipeline.run(pieces.count(), give, take);
  }

 private:
  void keep(Part own, Pieces::Range piece) {
    const std::byte* from = input_ + own.begin * element_ + piece.begin;
    std::byte* to = output_ + own.place * element_ + piece.begin;
    if (piece.bytes > 0 && from != to) std::memcpy(to, from, piece.bytes);
  }

  Peers& peers_;
  const int rank_, size_;
  const std::size_t element_;
  const std::byte* const input_;
  std::byte* const output_;
};

}  // namespace

void staged_broadcast(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  // Nobody but the root keeps what it has.
  move.run(Gives::one_part, call.root, kEverybody, call.count,
           [&](int from, int) { return Part{0, from == call.root ? call.count : 0, 0}; });
}

void staged_all_gather(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const Parts parts(call.output_counts, call.count, move.size());
  move.run(Gives::one_part, kEverybody, kEverybody, parts.longest(),
           [&](int from, int) { return Part{0, parts.count(from), parts.begin(from)}; });
}

void staged_gather(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  move.run(Gives::one_part, kEverybody, call.root, call.count, [&](int from, int to) {
    return Part{0, to == call.root ? call.count : 0, std::size_t(from) * call.count};
  });
}

void staged_scatter(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  move.run(Gives::a_part_for_each, call.root, kEverybody, call.count, [&](int from, int to) {
    return Part{std::size_t(to) * call.count, from == call.root ? call.count : 0, 0};
  });
}

void staged_all_to_all(Communicator& communicator, const Call& call) {
  StagedMove move(communicator, call);
  const Splits splits(*communicator.peers(), communicator, call);
  move.run(Gives::a_part_for_each, kEverybody, kEverybody, splits.longest(), [&](int from, int to) {
    return Part{splits.place_in_input(from, to), splits.count(from, to), splits.place_in_output(from, to)};
  });
}

}  // namespace vccl
