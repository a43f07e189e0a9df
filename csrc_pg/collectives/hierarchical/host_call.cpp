#include "csrc_pg/collectives/hierarchical/host_call.hpp"

#include "base/text.hpp"

namespace vccl {

HostCall::HostCall(Communicator& communicator, const Call& call)
    : peers_(communicator.host_peers()),
      hosts_(*communicator.host_ring()),
      element_(size_of(call.dtype)),
      index_(communicator.size()),
      inputs_(int(peers_.ranks().size())),
      outputs_(int(peers_.ranks().size())) {
  for (int rank = 0; rank < communicator.size(); ++rank) index_.add(-1);
  // What a rank of an all_to_all with splits has is checked where the splits are known.
  const bool agreed = call.collective != Collective::all_to_all || call.input_counts.empty();
  for (int peer = 0; peer < ranks(); ++peer) {
    const int rank = peers_.ranks()[std::size_t(peer)];
    const auto input = peers_.input(peer), output = peers_.output(peer);
    const Buffers wanted = buffers_of(call, rank, communicator.size());
    if (agreed && (input.size() != wanted.input * element_ || output.size() != wanted.output * element_)) {
      communicator.fail(ErrorCode::protocol, base::text("rank ", rank, " of ", communicator.name(),
                                                        " announced buffers of other lengths than ",
                                                        describe(signature_of(call)), " has"));
      communicator.check();
    }
    index_[rank] = peer;
    inputs_.add(input.data());
    outputs_.add(output.data());
  }
}

void HostCall::finish() const {
  if (is_on_ring()) hosts_.right().drain();
  peers_.arrive(Peers::kDone);
  peers_.await_all(Peers::kDone);
}

}  // namespace vccl
