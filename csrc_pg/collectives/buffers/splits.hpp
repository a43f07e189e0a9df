// Who sends how much to whom in an all_to_all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "csrc_pg/collectives/algorithm.hpp"

namespace vccl {

/// The lengths of all chunks of an all_to_all, in elements. A rank of a ring needs those that it passes on as
/// well.
///
/// If the chunks are equal, no rank asks another. Otherwise the ranks tell each other their counts, and each
/// compares what every rank sends with what its receiver expects. All ranks find the same disagreement, fail
/// the communicator with it and throw Error(mismatch). So a length that came from a peer is used only after
/// the rank that it concerns has confirmed it, and this rank's own buffers are addressed with its own counts.
class Splits {
 public:
  /// Sends the counts around the ring, inside an operation: one block of 16 bytes a rank, if the call has
  /// counts.
  Splits(Communicator& communicator, const Call& call);
  /// Takes the counts from what the ranks announced with split_payload().
  struct Announced {};
  Splits(Announced, Communicator& communicator, const Call& call);

  std::size_t count(int from, int to) const;
  std::size_t longest() const;
  /// Return where a chunk begins in the input of the rank that sends it, and in the output of the rank that
  /// receives it.
  std::size_t input_offset(int from, int to) const;
  std::size_t output_offset(int from, int to) const;

 private:
  void exchange(Communicator& communicator, const Call& call);
  void compare(Communicator& communicator) const;
  // What the rank sends to the other, or expects from it.
  std::uint64_t& sent(int rank, int other) { return table_[at(rank, other)]; }
  std::uint64_t sent(int rank, int other) const { return table_[at(rank, other)]; }
  std::uint64_t expected(int rank, int other) const { return table_[at(rank, size_ + other)]; }
  std::size_t at(int rank, int column) const {
    return static_cast<std::size_t>(rank) * 2 * static_cast<std::size_t>(size_) +
           static_cast<std::size_t>(column);
  }

  const int size_;
  const std::size_t equal_;           // the length of every chunk if they are equal
  std::vector<std::uint64_t> table_;  // a row for each rank: its input counts, its output counts
};

/// Returns the counts of an all_to_all with splits, for algorithms that send them along.
std::optional<Payload> split_payload(const Call& call, int rank, int size);

}  // namespace vccl
