#include "csrc_pg/collectives/hierarchical/host_call.hpp"

namespace vccl {

HostCall::HostCall(Communicator& communicator, const Call& call)
    : peers_(communicator.host_peers()),
      hosts_(*communicator.host_ring()),
      element_(size_of(call.dtype)),
      index_(communicator.size()),
      inputs_(int(peers_.ranks().size())),
      outputs_(int(peers_.ranks().size())) {
  for (int rank = 0; rank < communicator.size(); ++rank) index_.add(-1);
  for (int peer = 0; peer < ranks(); ++peer) {
    const int rank = peers_.ranks()[std::size_t(peer)];
    const auto input = peers_.input(peer), output = peers_.output(peer);
    check_announced(communicator, call, rank, input.size(), output.size());
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
