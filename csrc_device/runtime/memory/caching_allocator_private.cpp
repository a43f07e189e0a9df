// Private pools: who uses them, and for how long their memory stays reserved.
#include <algorithm>

#include "csrc_device/runtime/error.hpp"
#include "csrc_device/runtime/memory/caching_allocator_impl.hpp"

namespace vdev {

void CachingAllocator::retain_pool(PoolNumber pool) {
  if (impl_->made.inherited()) throw BadFork();
  if (pool < kFirstPrivatePool) throw InvalidArgument("retain_pool: not the number of a private pool");
  std::lock_guard lock(impl_->mutex);
  ++impl_->private_pools[pool].users;
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

}  // namespace vdev
