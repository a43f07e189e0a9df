// Direct reduce_scatter: each rank reduces its own chunk of all inputs. If the chunks are long and uneven, it
// reduces an even share of the whole instead, into the outputs of those ranks whose chunks that covers.
#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_reduction.hpp"

namespace vccl {

void direct_reduce_scatter(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  const Chunks chunks(call.input_counts, call.count, direct.size());
  const bool divided = divides_evenly(direct, chunks);
  direct.do_work_items([&](int rank) {
    Chunk work{chunks.begin(rank), chunks.count(rank)};
    if (divided) work = direct.even_chunk(rank, chunks.total());
    for (const int owner : direct.ranks_from(rank)) {
      const std::size_t begin = std::max(work.begin, chunks.begin(owner));
      const std::size_t end = std::min(work.begin + work.count, chunks.begin(owner) + chunks.count(owner));
      if (begin < end)
        reduce_directly(direct, call, {begin, end - begin}, {&owner, 1}, begin - chunks.begin(owner));
    }
  });
}

}  // namespace vccl
