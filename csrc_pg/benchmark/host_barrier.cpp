#include "csrc_pg/benchmark/host_barrier.hpp"

#include "base/futex.hpp"
#include "base/spinning.hpp"

namespace vccl {

std::uint32_t HostBarrier::arrive() noexcept {
  // The turn cannot change before this process has arrived.
  const std::uint32_t turn = words_.turn.load();
  // Each arrival is a read-modify-write of the one before, so the last one sees what every process did
  // before.
  if (words_.arrived.fetch_add(1) + 1 == size_) {
    // This store comes before the turn's: a process that sees the turn end may arrive again.
    words_.arrived.store(0);
    // This store pairs with the loads in await(): every process sees what was done before any process
    // arrived.
    words_.turn.store(turn + 1);
    base::futex_wake(words_.turn);
  }
  return turn;
}

bool HostBarrier::await(std::uint32_t turn, std::chrono::nanoseconds look,
                        Clock::time_point deadline) const noexcept {
  const auto is_over = [&] { return words_.turn.load() != turn; };
  for (const auto begin = Clock::now(); Clock::now() - begin < look; base::cpu_pause())
    if (is_over()) return true;
  while (!is_over()) {
    const std::chrono::nanoseconds left = deadline - Clock::now();
    if (left.count() <= 0) return false;
    base::futex_wait(words_.turn, turn, left);
  }
  return true;
}

}  // namespace vccl
