// Direct reduce_scatter: each rank reduces its own part of all inputs.
#include "csrc_pg/collectives/direct_reduction.hpp"
#include "csrc_pg/collectives/parts.hpp"

namespace vccl {

void direct_reduce_scatter(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Parts parts(call.input_counts, call.count, direct.size());
  const int rank = direct.rank();
  reduce_directly(direct, call, parts.begin(rank), parts.count(rank), {&rank, 1}, 0);
  direct.finish();
}

}  // namespace vccl
