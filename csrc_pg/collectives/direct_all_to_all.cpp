// Direct all_to_all: each rank takes its parts from all inputs.
#include "csrc_pg/collectives/direct.hpp"
#include "csrc_pg/collectives/direct_copy.hpp"
#include "csrc_pg/collectives/splits.hpp"

namespace vccl {

void direct_all_to_all(Communicator& communicator, const Call& call) {
  Direct direct(communicator, call);
  const Splits splits(*communicator.peers(), communicator, call);
  const std::size_t element = direct.element();
  const int rank = direct.rank();
  const bool leaves_caches = leave_caches(direct.peers().output(rank).size(), direct.size());
  for (const int from : direct.all_ranks()) {
    const std::size_t count = splits.count(from, rank), place = splits.place_in_input(from, rank);
    // What a peer said about its own input is believed as far as that input goes.
    const std::size_t length = direct.peers().input(from).size() / element;
    if (place > length || count > length - place) {
      communicator.fail(ErrorCode::protocol, "rank " + std::to_string(from) + " of " + communicator.name() +
                                                 " announced splits beyond its input for all_to_all");
      communicator.check();
    }
    pull(direct.output(rank) + splits.place_in_output(from, rank) * element,
         direct.input(from) + place * element, count * element, leaves_caches);
  }
  direct.finish();
}

}  // namespace vccl
