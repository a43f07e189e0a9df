// Direct all_gather: each rank reads all chunks. If the buffers leave the caches, it writes its own chunk
// into all outputs instead, so that each chunk is read from memory once. If the chunks are uneven as well, it
// writes an even share of each.
#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_call.hpp"

namespace vccl {

void direct_all_gather(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  const Chunks chunks(call.output_counts, call.count, direct.size());
  const std::size_t element = direct.element(), total = chunks.total() * element;
  const bool leaves_caches = leave_caches(total, direct.size()), divided = divides_evenly(direct, chunks);
  direct.do_work_items([&](int rank) {
    if (!leaves_caches) {
      for (const int from : direct.ranks_from(rank))
        pull(direct.output(rank) + chunks.begin(from) * element, direct.input(from),
             chunks.count(from) * element, false);
    } else if (divided) {
      for (const int from : direct.ranks_from(rank)) {
        const auto [begin, count] = direct.even_chunk(rank, chunks.count(from));
        push(direct.input(from) + begin * element,
             direct.outputs(rank, (chunks.begin(from) + begin) * element), count * element);
      }
    } else {
      push(direct.input(rank), direct.outputs(rank, chunks.begin(rank) * element),
           chunks.count(rank) * element);
    }
  });
}

}  // namespace vccl
