// Direct all_reduce: each rank reduces its share of the elements straight from all inputs, and writes the
// result into all outputs.
#include "csrc_pg/collectives/direct_reduction.hpp"

namespace vccl {

void direct_all_reduce(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  direct.share_out([&](int rank) {
    const auto [begin, count] = direct.share(rank, call.count);
    reduce_directly(direct, call, begin, count, direct.ranks_from(rank), begin);
  });
}

}  // namespace vccl
