#include "csrc_pg/collectives/algorithm.hpp"

#include "csrc_pg/collectives/selection/algorithm_list.hpp"

namespace vccl {

std::span<const Algorithm> algorithms() noexcept {
  return kAlgorithms;
}

}  // namespace vccl
