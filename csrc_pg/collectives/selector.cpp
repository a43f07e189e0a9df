// The table of algorithms, and the choice.
#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/call.hpp"

namespace vccl {

namespace {

constexpr Algorithm kAlgorithms[] = {
    {"ring", Collective::all_reduce, true, 0, kAnyLength, ring_all_reduce},
    {"ring", Collective::all_gather, true, 0, kAnyLength, ring_all_gather},
    {"ring", Collective::broadcast, true, 0, kAnyLength, ring_broadcast},
    {"ring", Collective::reduce_scatter, true, 0, kAnyLength, ring_reduce_scatter},
    {"ring", Collective::reduce, true, 0, kAnyLength, ring_reduce},
    {"ring", Collective::gather, true, 0, kAnyLength, ring_gather},
    {"ring", Collective::scatter, true, 0, kAnyLength, ring_scatter},
    {"ring", Collective::all_to_all, true, 0, kAnyLength, ring_all_to_all},
    {"ring", Collective::barrier, true, 0, kAnyLength, ring_barrier},
};

}  // namespace

std::span<const Algorithm> algorithms() noexcept {
  return kAlgorithms;
}

const Algorithm& select_algorithm(const Communicator& communicator, const Call& call) {
  const std::size_t bytes = longest_buffer(call, communicator.size());
  for (const auto& algorithm : algorithms()) {
    if (algorithm.collective != call.collective) continue;
    if (!algorithm.across_hosts && communicator.host_count() > 1) continue;
    if (bytes >= algorithm.min_bytes && bytes <= algorithm.max_bytes) return algorithm;
  }
  throw Error(ErrorCode::unsupported, std::string("no algorithm for ") + to_string(call.collective) + " of " +
                                          std::to_string(bytes) + " bytes over " +
                                          std::to_string(communicator.host_count()) + " hosts");
}

}  // namespace vccl
