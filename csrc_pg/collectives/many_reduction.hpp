// A reduction of the elements of many ranks at once.
#pragma once

#include <cstddef>

#include "csrc_pg/collectives/per_rank.hpp"
#include "csrc_pg/collectives/reduce_kernels.hpp"
#include "csrc_pg/collectives/types.hpp"

namespace vccl {

/// What a reduction over `size` ranks does arithmetic with: the factor of PREMUL_SUM, else the divisor of
/// AVG.
double scalar_of(const Call& call, int size);

/// Reduces what lies in one buffer a rank, in the order of ranks: ((0 + 1) + 2) + ... The result depends on
/// neither who computes it nor how it is cut into pieces.
class ManyReduction {
 public:
  ManyReduction(const Call& call, int size);

  /// PREMUL_SUM: the factor of a rank's elements.
  void set_factor(int rank, double factor) { scalars_[rank] = factor; }
  /// result[i] = inputs[0][i] op inputs[1][i] op ... The result may be one of the inputs.
  void operator()(std::byte* result, const std::byte* const* inputs, std::size_t count,
                  Manner manner = {}) const;

 private:
  const Reduction& reduction_;
  const std::size_t element_;
  const int size_;           // ranks
  PerRank<double> scalars_;  // for each rank's elements
};

}  // namespace vccl
