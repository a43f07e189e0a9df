// One rank's steps of a reduction along a chain of ranks.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"

namespace vccl {

/// Says where partial results go from rank to rank.
enum class Partials {
  in_slots,   // in slots: the window is the input, which has to stay as it is
  in_window,  // in the window, which is the output, if they are as long as an element; else in slots
};

/// Does a rank's steps for blocks that are added up along a chain of ranks. The first rank begins a block.
/// Every other rank adds its own elements to what comes from the left, and passes the sum on or keeps the
/// result. The algorithm fixes the chain, and with it every rounding.
class ChainReduction {
 public:
  ChainReduction(Communicator& communicator, const Call& call, Partials partials);

  /// Returns the length in bytes of the longest block of elements whose partial results have at most `bytes`.
  std::size_t block_bytes(std::size_t bytes) const;
  /// Returns whether add() sends partial results. If not, it leaves them at `result` in the window, and the
  /// caller posts them.
  bool sends_partials() const { return slots_; }

  /// Begins a block on the chain's first rank: sends the rank's own elements, which lie in the window at
  /// `offset`.
  void begin(std::size_t offset, const std::byte* own, std::size_t count);
  /// Adds the own elements to a block on every other rank. `offset` is where the block lies in the left
  /// neighbour's window. `is_first` says that the block comes from the chain's first rank; `is_last` says
  /// that this rank is the chain's last one, and `result` is where the result belongs.
  void add(std::size_t offset, const std::byte* own, std::byte* result, std::size_t count, bool is_first,
           bool is_last);

 private:
  Outbox& right_;
  Inbox& left_;
  const Reduction& reduction_;
  const std::size_t element_;
  const double scalar_;
  const bool slots_;
};

}  // namespace vccl
