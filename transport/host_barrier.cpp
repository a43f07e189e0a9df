#include "transport/host_barrier.hpp"

#include "transport/futex.hpp"
#include "transport/wait.hpp"

namespace vccl {

std::uint32_t HostBarrier::arrive() noexcept {
  // Does not change before we have arrived.
  const std::uint32_t turn = words_.turn.load();
  // Each arrival is a read-modify-write of the one before, so the last one has seen what all did before.
  if (words_.arrived.fetch_add(1) + 1 == size_) {
    // Before the turn: whoever sees that it is over may arrive again.
    words_.arrived.store(0);
    // Pairs with the loads in await: what was done before anybody arrived is seen by all.
    words_.turn.store(turn + 1);
    futex_wake(words_.turn);
  }
  return turn;
}

bool HostBarrier::await(std::uint32_t turn, std::chrono::nanoseconds look,
                        Clock::time_point deadline) const noexcept {
  const auto is_over = [&] { return words_.turn.load() != turn; };
  for (const auto begin = Clock::now(); Clock::now() - begin < look; relax())
    if (is_over()) return true;
  while (!is_over()) {
    const std::chrono::nanoseconds left = deadline - Clock::now();
    if (left.count() <= 0) return false;
    futex_wait(words_.turn, turn, left);
  }
  return true;
}

}  // namespace vccl
