// Direct scatter: each rank takes its own part from the root's input; where that is long, each rank, the root
// too, writes its share of every part.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"

namespace vccl {

void direct_scatter(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const std::size_t element = direct.element(), part = call.count * element;
  const std::byte* const parts = direct.input(call.root);
  if (part >= kSharedBytes) {
    const auto [begin, count] = direct.share(call.count);
    const std::size_t offset = begin * element;
    for (const int to : direct.all_ranks()) {
      std::byte* const place = direct.output(to) + offset;
      push(parts + std::size_t(to) * part + offset, {&place, 1}, count * element);
    }
    direct.finish();
    return;
  }
  pull(direct.output(direct.rank()), parts + std::size_t(direct.rank()) * part, part, false);
  direct.peers().arrive(Peers::kDone);
  // Nobody else's output is written, and nobody else's input is read.
  if (direct.rank() == call.root) direct.peers().await_all(Peers::kDone);
}

}  // namespace vccl
