// Barrier: on one host there is nothing left to do, since the beginning of the operation waits for every rank
// of the host. Across hosts a token goes round the ring twice: when it has come back to its sender, all ranks
// have arrived, and the second round tells them.
#include "csrc_pg/collectives/ring/ring.hpp"

namespace vccl {

void ring_barrier(Communicator& communicator, const Call&) {
  if (communicator.host_count() == 1) return;
  auto& right = communicator.right();
  auto& left = communicator.left();
  const auto pass_on = [&] {
    *right.reserve() = std::byte{1};
    right.commit(1);
  };
  const auto wait = [&] {
    left.take_committed(1);
    left.release();
  };
  const int position = communicator.ring_position();
  for (int round = 0; round < 2; ++round) {
    if (position == 0) {
      pass_on();
      if (round == 0) wait();
    } else {
      wait();
      if (round == 0 || position < communicator.size() - 1) pass_on();
    }
  }
}

}  // namespace vccl
