// Ring all_gather: every rank's chunk goes once around the ring, and all chunks go at the same time.
//
// In step s, position p sends the chunk of position p - s and receives that of p - s - 1, in place. A chunk
// is written once, before it is posted, so nothing that was posted changes.
#include <cstring>

#include "csrc_pg/collectives/buffers/chunks.hpp"
#include "csrc_pg/collectives/ring/ring.hpp"
#include "csrc_pg/collectives/ring/ring_schedule.hpp"

namespace vccl {

void ring_all_gather(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const Chunks chunks(call.output_counts, call.count, size);
  const std::size_t element = size_of(call.dtype);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  std::byte* own = output + chunks.begin(communicator.rank()) * element;
  if (size == 1) {
    if (chunks.total() > 0 && input != own) std::memcpy(own, input, chunks.total() * element);
    return;
  }
  auto& right = communicator.right();
  auto& left = communicator.left();

  const RingSchedule schedule(chunks.longest(), 1, element, ring_block_bytes(communicator));
  // Returns where a block of the chunk of another position lies, and its length. The position is `behind`
  // before ours; chunks lie in the order of ranks.
  const auto block_at = [&](RingSchedule::Transfer transfer, int behind, std::size_t& bytes) {
    const int rank = communicator.ring_rank((position - behind + size) % size);
    const auto [begin, count] = schedule.block_of_chunk(transfer, chunks.count(rank));
    bytes = count * element;
    return (chunks.begin(rank) + begin) * element;
  };
  schedule.run(
      size - 1,
      [&](RingSchedule::Transfer transfer) {
        std::size_t bytes = 0;
        const std::size_t offset = block_at(transfer, transfer.step, bytes);
        if (bytes == 0) return;
        if (transfer.step == 0 && input != own)
          std::memcpy(output + offset, input + (offset - static_cast<std::size_t>(own - output)), bytes);
        right.post(offset, bytes);
      },
      [&](RingSchedule::Transfer transfer) {
        std::size_t bytes = 0;
        const std::size_t offset = block_at(transfer, transfer.step + 1, bytes);
        if (bytes == 0) return;
        std::memcpy(output + offset, left.take(offset, bytes), bytes);
        left.release();
      });
}

}  // namespace vccl
