// Direct scatter: each rank takes its own part from the root's input.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"

namespace vccl {

void direct_scatter(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const std::size_t part = call.count * direct.element();
  pull(direct.output(direct.rank()), direct.input(call.root) + std::size_t(direct.rank()) * part, part, part);
  direct.peers().arrive(Peers::kDone);
  // Nobody else's output is written, and nobody else's input is read.
  if (direct.rank() == call.root) direct.peers().await_all(Peers::kDone);
}

}  // namespace vccl
