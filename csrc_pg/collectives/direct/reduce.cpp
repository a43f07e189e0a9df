// Direct reduce: each rank reduces its chunk of the elements from all inputs into the root's output.
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_reduction.hpp"

namespace vccl {

void direct_reduce(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  direct.do_work_items([&](int rank) {
    const Chunk chunk = direct.even_chunk(rank, call.count);
    reduce_directly(direct, call, chunk, {&call.root, 1}, chunk.begin);
  });
}

}  // namespace vccl
