// Direct reduce: each rank reduces its share of the elements from all inputs into the root's output.
#include "csrc_pg/collectives/direct_reduction.hpp"

namespace vccl {

void direct_reduce(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const auto [begin, count] = direct.share(call.count);
  reduce_directly(direct, call, begin, count, {&call.root, 1}, begin);
  direct.finish();
}

}  // namespace vccl
