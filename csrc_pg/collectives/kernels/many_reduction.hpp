// A reduction of the elements of many ranks at once.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/buffers/per_rank.hpp"
#include "csrc_pg/collectives/call.hpp"
#include "csrc_pg/collectives/kernels/reduction.hpp"

namespace vccl {

/// Returns the number that a reduction over `size` ranks does arithmetic with: the factor of PREMUL_SUM, else
/// the divisor of AVG.
double scalar_of(const Call& call, int size);

/// Reduces what lies in one buffer for each rank, in the order of ranks: ((0 + 1) + 2) + ... The result
/// depends neither on who computes it nor on how it is cut into blocks.
class ManyReduction {
 public:
  ManyReduction(const Call& call, int size);

  /// Sets the factor that PREMUL_SUM multiplies a rank's elements by.
  void set_factor(int rank, double factor) { scalars_[rank] = factor; }
  /// Computes result[i] = inputs[0][i] op inputs[1][i] op ... The result may be one of the inputs.
  void operator()(std::byte* result, const std::byte* const* inputs, std::size_t count,
                  LoopOptions options = {}) const;

 private:
  const Reduction& reduction_;
  const std::size_t element_;
  const int size_;           // ranks
  PerRank<double> scalars_;  // one for each rank's elements
};

/// Computes what the reduction makes of the elements of a group of one rank.
void reduce_alone(const Call& call, std::size_t count, const void* input, void* output);

}  // namespace vccl
