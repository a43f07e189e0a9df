// Private pools: who uses them, for how long their memory stays reserved, and which threads allocate from
// them.
#include <algorithm>
#include <iterator>

#include "csrc_device/runtime/allocator/caching_allocator_impl.hpp"
#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/error.hpp"

namespace vdev {
namespace {

/// Says where a thread's allocations go between begin_pool() and end_pool().
struct ChosenPool {
  CachingAllocator* allocator;
  PoolNumber pool;
};

thread_local std::vector<ChosenPool> chosen_pools;
// Every allocation looks at this, and it needs no initialisation.
constinit thread_local int chosen_pool_count = 0;

}  // namespace

void CachingAllocator::retain_pool(PoolNumber pool, PoolOptions options) {
  if (impl_->made.inherited()) throw BadFork();
  if (pool < kFirstPrivatePool) throw InvalidArgument("retain_pool: not the number of a private pool");
  std::lock_guard lock(impl_->mutex);
  PrivatePool& entry = impl_->private_pools.try_emplace(pool, PrivatePool{.options = options}).first->second;
  ++entry.users;
}

void CachingAllocator::use_pool(PoolNumber pool, const std::shared_ptr<Queue>& queue) {
  if (impl_->made.inherited()) throw BadFork();
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->private_pools.find(pool);
  if (found == impl_->private_pools.end()) throw InvalidArgument("use_pool: no such private pool");
  auto& queues = found->second.queues;
  if (std::ranges::find(queues, queue) == queues.end()) queues.push_back(queue);
}

void CachingAllocator::release_pool(PoolNumber pool) noexcept {
  if (impl_->made.inherited()) return;
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->private_pools.find(pool);
  if (found != impl_->private_pools.end() && found->second.users != 0) --found->second.users;
}

std::size_t CachingAllocator::pool_users(PoolNumber pool) const {
  if (impl_->made.inherited()) return 0;
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->private_pools.find(pool);
  return found == impl_->private_pools.end() ? 0 : found->second.users;
}

void CachingAllocator::begin_pool(PoolNumber pool) {
  retain_pool(pool);
  chosen_pools.push_back({this, pool});
  ++chosen_pool_count;
}

void CachingAllocator::end_pool(PoolNumber pool) {
  const auto last = std::find_if(chosen_pools.rbegin(), chosen_pools.rend(), [&](const ChosenPool& chosen) {
    return chosen.allocator == this && chosen.pool == pool;
  });
  if (last == chosen_pools.rend())
    throw InvalidArgument("end_pool: this thread does not allocate from the pool");
  chosen_pools.erase(std::next(last).base());
  --chosen_pool_count;
  release_pool(pool);
}

/// Returns the pool that an allocation of the program comes from.
PoolNumber CachingAllocator::program_pool(const Queue& queue) {
  const auto capture = queue.capture();
  if (capture) return capture->pool_in(*this);
  if (chosen_pool_count == 0) [[likely]]
    return kProgramPool;
  const auto last = std::find_if(chosen_pools.rbegin(), chosen_pools.rend(),
                                 [&](const ChosenPool& chosen) { return chosen.allocator == this; });
  return last == chosen_pools.rend() ? kProgramPool : last->pool;
}

/// Returns a free block of a pool that may be used when there is no other room, or null. The pool's blocks
/// are freed in the order of the host, as the program's are.
Block* CachingAllocator::Impl::find_in_other_pools(const Pool& pool, const Request& request) {
  if (pool.number != kProgramPool) return nullptr;
  for (const auto& [number, entry] : private_pools) {
    if (!entry.options.use_on_oom) continue;
    const auto found = pools.find({pool.queue.get(), number});
    if (found == pools.end()) continue;
    if (Block* block = find_free(*found->second, request)) return block;
  }
  return nullptr;
}

}  // namespace vdev
