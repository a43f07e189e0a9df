// Direct all_gather: each rank takes all parts, or, where they do not stay in the cache, writes its own part
// into all outputs, so that each part is read from memory once.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/parts.hpp"

namespace vccl {

void direct_all_gather(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Parts parts(call.output_counts, call.count, direct.size());
  const std::size_t element = direct.element(), total = parts.total() * element;
  const int rank = direct.rank();
  if (total < kStreamedBytes) {
    for (const int from : direct.all_ranks())
      pull(direct.output(rank) + parts.begin(from) * element, direct.input(from), parts.count(from) * element,
           total);
  } else {
    push(direct.input(rank), direct.outputs(parts.begin(rank) * element), parts.count(rank) * element);
  }
  direct.finish();
}

}  // namespace vccl
