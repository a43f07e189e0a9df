#include "transport/shared/flags.hpp"

#include <sched.h>

#include "base/futex.hpp"

namespace vccl {

void wake_sleepers(RankLine& line) noexcept {
  line.wakeups.fetch_add(1);
  base::futex_wake(line.wakeups);
}

void wake_others(const HostGroup& host) noexcept {
  for (int i = 0; i < static_cast<int>(host.ranks.size()); ++i) {
    if (i != host.index) wake(host.line(i));
  }
}

void announce_core(RankLine& own) noexcept {
  const int core = sched_getcpu();
  // The core is stored only when it has changed, because the peers have this line in their caches.
  if (own.core.load(std::memory_order_relaxed) != core) own.core.store(core, std::memory_order_relaxed);
}

}  // namespace vccl
