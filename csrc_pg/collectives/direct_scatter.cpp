// Direct scatter: each rank takes its own part from the root's input; where that is long, each rank, the root
// too, writes its share of every part.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"

namespace vccl {

void direct_scatter(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const std::size_t element = direct.element(), part = call.count * element;
  const std::byte* const parts = direct.input(call.root);
  const bool shared = part >= kSharedBytes;
  const auto work = [&](int rank) {
    if (!shared) {
      pull(direct.output(rank), parts + std::size_t(rank) * part, part, false);
      return;
    }
    const auto [begin, count] = direct.share(rank, call.count);
    const std::size_t offset = begin * element;
    for (const int to : direct.ranks_from(rank)) {
      std::byte* const place = direct.output(to) + offset;
      push(parts + std::size_t(to) * part + offset, {&place, 1}, count * element);
    }
  };
  // Where each rank takes its own part, nobody but the root has an input that others read.
  direct.share_out(work, shared || direct.rank() == call.root);
}

}  // namespace vccl
