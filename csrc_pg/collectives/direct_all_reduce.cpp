// Direct all_reduce: each rank reduces its share of the elements straight from all inputs, and writes the
// result into all outputs.
#include "csrc_pg/collectives/direct_reduction.hpp"

namespace vccl {

void direct_all_reduce(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const auto [begin, count] = direct.share(call.count);
  reduce_directly(direct, call, begin, count, direct.all_ranks(), begin);
  direct.finish();
}

}  // namespace vccl
