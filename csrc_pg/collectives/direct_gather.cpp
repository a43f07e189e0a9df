// Direct gather: each rank writes its own part into the root's output, or, where that is long, its share of
// every part: else the root would wait for the others, and most of the memory's speed would be left.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"

namespace vccl {

void direct_gather(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const std::size_t element = direct.element(), part = call.count * element;
  const auto write = [&](int from, Share share) {
    const std::size_t offset = share.begin * element;
    std::byte* const place = direct.output(call.root) + std::size_t(from) * part + offset;
    push(direct.input(from) + offset, {&place, 1}, share.count * element);
  };
  direct.share_out([&](int rank) {
    if (part < kSharedBytes)
      write(rank, {0, call.count});
    else
      for (const int from : direct.ranks_from(rank)) write(from, direct.share(rank, call.count));
  });
}

}  // namespace vccl
