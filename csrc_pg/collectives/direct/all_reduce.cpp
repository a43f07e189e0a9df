// Direct all_reduce: each rank reduces its chunk of the elements straight from all inputs, and writes the
// result into all outputs.
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_reduction.hpp"

namespace vccl {

void direct_all_reduce(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  direct.do_work_items([&](int rank) {
    const Chunk chunk = direct.even_chunk(rank, call.count);
    reduce_directly(direct, call, chunk, direct.ranks_from(rank), chunk.begin);
  });
}

}  // namespace vccl
