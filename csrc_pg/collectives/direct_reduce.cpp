// Direct reduce: each rank reduces its share of the elements from all inputs into the root's output.
#include "csrc_pg/collectives/direct_reduction.hpp"

namespace vccl {

void direct_reduce(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  direct.share_out([&](int rank) {
    const auto [begin, count] = direct.share(rank, call.count);
    reduce_directly(direct, call, begin, count, {&call.root, 1}, begin);
  });
}

}  // namespace vccl
