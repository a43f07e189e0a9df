// Ring all_gather: every rank's part goes once around the ring, all of them at a time.
//
// In step s position p sends the part of position p - s and receives that of p - s - 1, in place. A part is
// written once, before it is posted, so nothing that was posted changes.
#include <cstring>

#include "csrc_pg/collectives/algorithm.hpp"
#include "csrc_pg/collectives/parts.hpp"
#include "csrc_pg/collectives/ring_schedule.hpp"

namespace vccl {

namespace {
constexpr std::size_t kBlockBytes = 128 * 1024;
}

void ring_all_gather(Communicator& communicator, const Call& call) {
  const int size = communicator.size(), position = communicator.ring_position();
  const Parts parts(call.output_counts, call.count, size);
  const std::size_t element = size_of(call.dtype);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  std::byte* own = output + parts.begin(communicator.rank()) * element;
  if (size == 1) {
    if (parts.total() > 0 && input != own) std::memcpy(own, input, parts.total() * element);
    return;
  }
  auto& right = communicator.right();
  auto& left = communicator.left();

  const RingSchedule schedule(parts.longest(), 1, element, kBlockBytes);
  // A block of the part of the position that is `behind` before ours: parts lie in the order of ranks.
  const auto place = [&](RingSchedule::Turn turn, int behind, std::size_t& bytes) {
    const int rank = communicator.ring_rank((position - behind + size) % size);
    const auto [begin, count] = schedule.range_in_part(turn, parts.count(rank));
    bytes = count * element;
    return (parts.begin(rank) + begin) * element;
  };
  schedule.run(
      size - 1,
      [&](RingSchedule::Turn turn) {
        std::size_t bytes = 0;
        const std::size_t offset = place(turn, turn.step, bytes);
        if (bytes == 0) return;
        if (turn.step == 0 && input != own)
          std::memcpy(output + offset, input + (offset - static_cast<std::size_t>(own - output)), bytes);
        right.post(offset, bytes);
      },
      [&](RingSchedule::Turn turn) {
        std::size_t bytes = 0;
        const std::size_t offset = place(turn, turn.step + 1, bytes);
        if (bytes == 0) return;
        std::memcpy(output + offset, left.take(offset, bytes), bytes);
        left.release();
      });
}

}  // namespace vccl
