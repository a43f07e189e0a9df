#include "csrc_device/runtime/allocator/chosen_pools.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

namespace vdev {
namespace {

struct ChosenPool {
  const CachingAllocator* allocator;
  PoolNumber pool;
};

thread_local std::vector<ChosenPool> chosen_pools;
// Every allocation looks at this, and it needs no initialisation.
constinit thread_local int chosen_pool_count = 0;

}  // namespace

void choose_pool(const CachingAllocator* allocator, PoolNumber pool) {
  chosen_pools.push_back({allocator, pool});
  ++chosen_pool_count;
}

bool end_choice(const CachingAllocator* allocator, PoolNumber pool) {
  const auto last = std::find_if(chosen_pools.rbegin(), chosen_pools.rend(), [&](const ChosenPool& chosen) {
    return chosen.allocator == allocator && chosen.pool == pool;
  });
  if (last == chosen_pools.rend()) return false;
  chosen_pools.erase(std::next(last).base());
  --chosen_pool_count;
  return true;
}

PoolNumber chosen_pool(const CachingAllocator* allocator) noexcept {
  if (chosen_pool_count == 0) [[likely]]
    return kProgramPool;
  const auto last = std::find_if(chosen_pools.rbegin(), chosen_pools.rend(),
                                 [&](const ChosenPool& chosen) { return chosen.allocator == allocator; });
  return last == chosen_pools.rend() ? kProgramPool : last->pool;
}

}  // namespace vdev
