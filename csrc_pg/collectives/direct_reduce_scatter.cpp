// Direct reduce_scatter: each rank reduces its own part of all inputs, or, where the parts are long and
// uneven, its share of the whole, into whosever outputs that belongs.
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/direct_reduction.hpp"
#include "csrc_pg/collectives/parts.hpp"

namespace vccl {

void direct_reduce_scatter(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Parts parts(call.input_counts, call.count, direct.size());
  Share mine{parts.begin(direct.rank()), parts.count(direct.rank())};
  if (are_shared(direct, parts)) mine = direct.share(parts.total());
  for (const int owner : direct.all_ranks()) {
    const std::size_t begin = std::max(mine.begin, parts.begin(owner));
    const std::size_t end = std::min(mine.begin + mine.count, parts.begin(owner) + parts.count(owner));
    if (begin < end)
      reduce_directly(direct, call, begin, end - begin, {&owner, 1}, begin - parts.begin(owner));
  }
  direct.finish();
}

}  // namespace vccl
