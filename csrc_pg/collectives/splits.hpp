// Who sends how much to whom in an all_to_all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// The lengths of all parts of an all_to_all, in elements: every rank needs those it passes on as well.
///
/// With equal parts nothing is asked of anybody. Otherwise the ranks tell each other their counts around the
/// ring, once, and each compares what every rank sends with what its receiver expects: all ranks find the
/// same disagreement, fail the communicator with it and throw Error(mismatch). So a length that came from a
/// peer is used only after the rank that it concerns has confirmed it, and this rank's own buffers are
/// addressed with its own counts.
class Splits {
 public:
  /// Inside an operation. Moves one block of 16 bytes a rank, if the call has counts.
  Splits(Communicator& communicator, const Call& call);
  /// The same, from what the ranks announced with split_payload().
  Splits(Peers& peers, Communicator& communicator, const Call& call);

  std::size_t count(int from, int to) const;
  std::size_t longest() const;
  /// Where a part lies in the input of the rank that sends it, and in the output of the one that receives it.
  std::size_t place_in_input(int from, int to) const;
  std::size_t place_in_output(int from, int to) const;

 private:
  void exchange(Communicator& communicator, const Call& call);
  void compare(Communicator& communicator) const;
  // What the rank sends to, or expects from, the other.
  std::uint64_t& sent(int rank, int other) { return table_[at(rank, other)]; }
  std::uint64_t sent(int rank, int other) const { return table_[at(rank, other)]; }
  std::uint64_t expected(int rank, int other) const { return table_[at(rank, size_ + other)]; }
  std::size_t at(int rank, int column) const {
    return static_cast<std::size_t>(rank) * 2 * static_cast<std::size_t>(size_) +
           static_cast<std::size_t>(column);
  }

  const int size_;
  const std::size_t equal_;
  std::vector<std::uint64_t> table_;  // a row for each rank: its input counts, its output counts
};

}  // namespace vccl
