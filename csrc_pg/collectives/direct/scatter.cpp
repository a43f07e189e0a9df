// Direct scatter: each rank reads its own chunk from the root's input. If the chunks are long, each rank, the
// root too, writes an even share of every chunk instead.
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_call.hpp"

namespace vccl {

void direct_scatter(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  const std::size_t element = direct.element(), chunk_bytes = call.count * element;
  const std::byte* const chunks = direct.input(call.root);
  const bool divided = chunk_bytes >= kDividedBytes;
  const auto work = [&](int rank) {
    if (!divided) {
      pull(direct.output(rank), chunks + std::size_t(rank) * chunk_bytes, chunk_bytes, false);
      return;
    }
    const auto [begin, count] = direct.even_chunk(rank, call.count);
    const std::size_t offset = begin * element;
    for (const int receiver : direct.ranks_from(rank)) {
      std::byte* const to = direct.output(receiver) + offset;
      push(chunks + std::size_t(receiver) * chunk_bytes + offset, {&to, 1}, count * element);
    }
  };
  // Where each rank reads its own chunk, nobody but the root has an input that others read.
  direct.do_work_items(work, divided || direct.rank() == call.root);
}

}  // namespace vccl
