// Direct all_to_all: each rank takes its parts from all inputs.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/splits.hpp"

namespace vccl {

namespace {

/// What a peer said about its own buffers is believed as far as they go.
void check_inside(Communicator& communicator, int rank, const char* buffer, std::size_t length,
                  std::size_t place, std::size_t count) {
  if (place <= length && count <= length - place) return;
  communicator.fail(ErrorCode::protocol, "rank " + std::to_string(rank) + " of " + communicator.name() +
                                             " announced splits beyond its " + buffer + " for all_to_all");
  communicator.check();
}

}  // namespace

void direct_all_to_all(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Splits splits(*communicator.peers(), communicator, call);
  const std::size_t element = direct.element();
  direct.share_out([&](int rank) {
    const std::size_t output = direct.peers().output(rank).size();
    const bool leaves_caches = leave_caches(output, direct.size());
    for (const int from : direct.ranks_from(rank)) {
      const std::size_t count = splits.count(from, rank);
      const std::size_t begin = splits.place_in_input(from, rank), place = splits.place_in_output(from, rank);
      check_inside(communicator, from, "input", direct.peers().input(from).size() / element, begin, count);
      check_inside(communicator, rank, "output", output / element, place, count);
      pull(direct.output(rank) + place * element, direct.input(from) + begin * element, count * element,
           leaves_caches);
    }
  });
}

}  // namespace vccl
