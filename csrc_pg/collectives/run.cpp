#include "csrc_pg/collectives/run.hpp"

#include <algorithm>

#include "csrc_pg/collectives/direct/direct_call.hpp"
#include "csrc_pg/collectives/selector.hpp"

namespace vccl {

namespace {

Announcement announcement_of(const Communicator& communicator, const Call& call, const Choice& choice) {
  const int rank = communicator.rank(), size = communicator.size();
  Announcement announcement{.signature = signature_of(call), .window = window_of(call, rank, size)};
  announcement.algorithm = choice.number();
  announcement.payload_bytes = choice.payload.bytes;
  std::copy(std::begin(choice.payload.data), std::end(choice.payload.data), announcement.payload);
  if (!needs_mapping(choice.first->reach)) return announcement;
  const Buffers buffers = buffers_of(call, rank, size);
  const std::size_t element = size_of(call.dtype);
  announcement.shows = true;
  // Peers read what is shown as input. They write to an input only where it is also shown as output.
  announcement.input = {static_cast<std::byte*>(const_cast<void*>(call.input)), buffers.input * element};
  announcement.output = {static_cast<std::byte*>(call.output), buffers.output * element};
  announcement.factor = factor_bits(call);
  return announcement;
}

/// Returns whether the first algorithm of the choice can do the call. All ranks come to the same answer.
bool can_do_first(Communicator& communicator, const Choice& choice) {
  if (!needs_mapping(choice.first->reach)) return true;
  const bool mapped = communicator.host_peers().all_mapped();
  return choice.first->reach == Reach::across ? communicator.host_ring()->all(mapped) : mapped;
}

}  // namespace

void run(Communicator& communicator, const Call& call, const Deadline& deadline) {
  check_call(communicator, call);
  const Choice choice = choose_algorithms(communicator, call);
  Operation operation(communicator, announcement_of(communicator, call, choice), deadline);
  (can_do_first(communicator, choice) ? choice.first : choice.otherwise)->run(communicator, call);
  operation.finish();
}

}  // namespace vccl
