// Direct reduce_scatter: each rank reduces its own part of all inputs, or, where the parts are long and
// uneven, its share of the whole, into whosever outputs that belongs.
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/direct_reduction.hpp"
#include "csrc_pg/collectives/parts.hpp"

namespace vccl {

void direct_reduce_scatter(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Parts parts(call.input_counts, call.count, direct.size());
  const bool shared = are_shared(direct, parts);
  direct.share_out([&](int rank) {
    Share share{parts.begin(rank), parts.count(rank)};
    if (shared) share = direct.share(rank, parts.total());
    for (const int owner : direct.ranks_from(rank)) {
      const std::size_t begin = std::max(share.begin, parts.begin(owner));
      const std::size_t end = std::min(share.begin + share.count, parts.begin(owner) + parts.count(owner));
      if (begin < end)
        reduce_directly(direct, call, begin, end - begin, {&owner, 1}, begin - parts.begin(owner));
    }
  });
}

}  // namespace vccl
