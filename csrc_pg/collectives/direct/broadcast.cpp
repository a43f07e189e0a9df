// Direct broadcast: each rank, the root too, writes its chunk of the root's elements into all outputs.
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_call.hpp"

namespace vccl {

void direct_broadcast(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  direct.do_work_items([&](int rank) {
    const auto [begin, count] = direct.even_chunk(rank, call.count);
    const std::size_t offset = begin * direct.element();
    push(direct.input(call.root) + offset, direct.outputs(rank, offset), count * direct.element());
  });
}

}  // namespace vccl
