// Direct all_gather: each rank takes all parts, or, where they do not stay in the cache, writes its own part
// into all outputs, so that each part is read from memory once; if the parts are uneven, its share of each.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/parts.hpp"

namespace vccl {

void direct_all_gather(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Parts parts(call.output_counts, call.count, direct.size());
  const std::size_t element = direct.element(), total = parts.total() * element;
  const bool leaves_caches = leave_caches(total, direct.size()), shared = are_shared(direct, parts);
  direct.share_out([&](int rank) {
    if (!leaves_caches) {
      for (const int from : direct.ranks_from(rank))
        pull(direct.output(rank) + parts.begin(from) * element, direct.input(from),
             parts.count(from) * element, false);
    } else if (shared) {
      for (const int from : direct.ranks_from(rank)) {
        const auto [begin, count] = direct.share(rank, parts.count(from));
        push(direct.input(from) + begin * element,
             direct.outputs(rank, (parts.begin(from) + begin) * element), count * element);
      }
    } else {
      push(direct.input(rank), direct.outputs(rank, parts.begin(rank) * element),
           parts.count(rank) * element);
    }
  });
}

}  // namespace vccl
