// Ring reduce_scatter: the first half of the ring all_reduce, with chains that end where the chunks belong.
//
// Position p of n sends the chunk of position p - 1 - s in step s and receives that of p - 2 - s; the last
// one that it receives is its own. The window is the input, of which a rank posts one chunk only, as it is.
// Partial results go through slots. So the input is not written to, and the output may be the rank's own
// chunk of it, which no neighbour reads.
#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/kernels/many_reduction.hpp"
#include "csrc_pg/collectives/ring/chain_reduction.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"
#include "csrc_pg/collectives/ring/ring_schedule.hpp"

namespace vccl {

void ring_reduce_scatter(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const Chunks chunks(call.input_counts, call.count, size);
  if (chunks.total() == 0) return;
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  if (size == 1) {
    reduce_alone(call, chunks.total(), input, output);
    return;
  }
  const std::size_t element = size_of(call.dtype);
  ChainReduction chain(communicator, call, Partials::in_slots);
  const RingSchedule schedule(chunks.longest(), 1, element,
                              chain.block_bytes(ring_block_bytes(communicator)));
  const auto chunk_before = [&](int behind) {
    return communicator.ring_rank((position - behind + 2 * size) % size);
  };
  schedule.run(
      size - 1,
      [&](RingSchedule::Transfer transfer) {
        // The blocks of later steps were sent when they were computed, from their slots.
        if (transfer.step > 0) return;
        const int rank = chunk_before(1);
        const auto [begin, count] = schedule.block_of_chunk(transfer, chunks.count(rank));
        const std::size_t offset = (chunks.begin(rank) + begin) * element;
        if (count > 0) chain.begin(offset, input + offset, count);
      },
      [&](RingSchedule::Transfer transfer) {
        const int rank = chunk_before(transfer.step + 2);
        const auto [begin, count] = schedule.block_of_chunk(transfer, chunks.count(rank));
        const std::size_t offset = (chunks.begin(rank) + begin) * element;
        const bool is_last = transfer.step == size - 2;
        std::byte* result = is_last ? output + begin * element : nullptr;
        if (count > 0) chain.add(offset, input + offset, result, count, transfer.step == 0, is_last);
      });
}

}  // namespace vccl
