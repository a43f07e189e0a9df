// Ring reduce_scatter: the first half of the ring all_reduce, in which the chains end where the parts belong.
//
// Position p of n sends the part of position p - 1 - s in step s and receives that of p - 2 - s; the last one
// that comes is its own. The window is the input, of which a rank posts one part only, untouched; partial
// results travel in slots. So the input stays as it is, and the output may be the rank's own part of it,
// which no neighbour reads.
#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/chain_reduction.hpp"
#include "csrc_pg/collectives/parts.hpp"
#include "csrc_pg/collectives/ring_schedule.hpp"

namespace vccl {

namespace {
constexpr std::size_t kBlockBytes = 128 * 1024;
}

void ring_reduce_scatter(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const Parts parts(call.input_counts, call.count, size);
  if (parts.total() == 0) return;
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  if (size == 1) {
    reduce_alone(call, parts.total(), input, output);
    return;
  }
  const std::size_t element = size_of(call.dtype);
  ChainReduction chain(communicator, call, Partials::in_slots);
  const RingSchedule schedule(parts.longest(), 1, element, chain.block_bytes(kBlockBytes));
  const auto part_before = [&](int behind) {
    return communicator.ring_rank((position - behind + 2 * size) % size);
  };
  schedule.run(
      size - 1,
      [&](RingSchedule::Turn turn) {
        // Later steps' blocks left at once, from the slots they were computed into.
        if (turn.step > 0) return;
        const int rank = part_before(1);
        const auto [begin, count] = schedule.range_in_part(turn, parts.count(rank));
        const std::size_t offset = (parts.begin(rank) + begin) * element;
        if (count > 0) chain.begin(offset, input + offset, count);
      },
      [&](RingSchedule::Turn turn) {
        const int rank = part_before(turn.step + 2);
        const auto [begin, count] = schedule.range_in_part(turn, parts.count(rank));
        const std::size_t offset = (parts.begin(rank) + begin) * element;
        const bool is_last = turn.step == size - 2;
        std::byte* result = is_last ? output + begin * element : nullptr;
        if (count > 0) chain.add(offset, input + offset, result, count, turn.step == 0, is_last);
      });
}

}  // namespace vccl
