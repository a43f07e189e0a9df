// A reduction along a chain of ranks, as one rank sees it.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/reduce_kernels.hpp"
#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// Where partial results travel.
enum class Partials {
  in_slots,   // the window is the input, which has to stay as it is
  in_window,  // the window is the output, where they are as long as an element; else in slots
};

/// What a rank does with a block that is added up along a chain of ranks: it begins it, or adds its own
/// elements to what comes from the left and passes it on, or keeps the result. The chain, and with it every
/// rounding, is fixed by the algorithm.
class ChainReduction {
 public:
  ChainReduction(Communicator& communicator, const Call& call, Partials partials);

  /// The longest block of elements, in bytes, if a block of partial results may have `bytes`.
  std::size_t block_bytes(std::size_t bytes) const;
  /// Whether add() sends partial results. If not, it leaves them at `result` in the window, to be posted.
  bool sends_partials() const { return slots_; }

  /// The chain's first rank: sends its own elements, which lie in the window at `offset`.
  void begin(std::size_t offset, const std::byte* own, std::size_t count);
  /// Every other rank. `offset` is where the block lies in the left neighbour's window. `is_first`: it comes
  /// from the chain's first rank; `is_last`: we are the chain's last one, and `result` is where the result
  /// belongs.
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

/// The chain of one rank: what the reduction makes of its elements alone.
void reduce_alone(const Call& call, std::size_t count, const void* input, void* output);

}  // namespace vccl
