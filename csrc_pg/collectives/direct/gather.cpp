// Direct gather: each rank writes its own chunk into the root's output. If the chunks are long, each rank
// writes an even share of every chunk instead: otherwise the root would wait for the others, and most of the
// memory's speed would be left unused.
#include "csrc_pg/collectives/buffers/copy.hpp"
#include "csrc_pg/collectives/direct/direct.hpp"
#include "csrc_pg/collectives/direct/direct_call.hpp"

namespace vccl {

void direct_gather(Communicator& communicator, const Call& call) {
  DirectCall direct(communicator, call);
  const std::size_t element = direct.element(), chunk_bytes = call.count * element;
  const auto write = [&](int from, Chunk part) {
    const std::size_t offset = part.begin * element;
    std::byte* const to = direct.output(call.root) + std::size_t(from) * chunk_bytes + offset;
    push(direct.input(from) + offset, {&to, 1}, part.count * element);
  };
  direct.do_work_items([&](int rank) {
    if (chunk_bytes < kDividedBytes)
      write(rank, {0, call.count});
    else
      for (const int from : direct.ranks_from(rank)) write(from, direct.even_chunk(rank, call.count));
  });
}

}  // namespace vccl
