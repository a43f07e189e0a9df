// Direct broadcast: each rank, the root too, writes its share of the root's elements into all outputs.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"

namespace vccl {

void direct_broadcast(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  direct.share_out([&](int rank) {
    const auto [begin, count] = direct.share(rank, call.count);
    const std::size_t offset = begin * direct.element();
    push(direct.input(call.root) + offset, direct.outputs(rank, offset), count * direct.element());
  });
}

}  // namespace vccl
