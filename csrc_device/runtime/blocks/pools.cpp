#include "csrc_device/runtime/blocks/pools.hpp"

#include <algorithm>
#include <iterator>

namespace vdev {

Block* Pool::take_fit(const BlockRequest& request) {
  auto& blocks = free_blocks(request.small);
  Block key;
  key.size = request.size;
  const auto found = blocks.lower_bound(&key);
  if (found == blocks.end()) return nullptr;
  Block* block = *found;
  const auto& settings = request.settings;
  const bool oversize = request.size >= settings.max_split_size;
  if (!oversize && block->size >= settings.max_split_size) return nullptr;
  if (oversize && block->size - request.size >= settings.max_non_split_rounding) return nullptr;
  blocks.erase(found);
  return block;
}

std::set<const Block*> Pool::oversize_blocks_for(const BlockRequest& request) const {
  Block key;
  key.size = std::max(request.size, request.settings.max_split_size);
  if (const auto found = large.lower_bound(&key); found != large.end()) return {*found};
  std::set<const Block*> chosen;
  std::size_t together = 0;
  for (auto it = large.rbegin(); it != large.rend() && together < key.size; ++it) {
    if ((*it)->size < request.settings.max_split_size) return {};
    chosen.insert(*it);
    together += (*it)->size;
  }
  return together < key.size ? std::set<const Block*>{} : chosen;
}

Pool& Pools::find_or_make(const std::shared_ptr<Queue>& queue, PoolNumber number) {
  auto& pool = pools_[{queue.get(), number}];
  if (!pool) {
    pool = std::make_unique<Pool>();
    pool->queue = queue;
    pool->number = number;
    pool->splits = number < kFirstPrivatePool || !private_.at(number).options.no_split;
  }
  return *pool;
}

void Pools::adopt_orphans(Pool& pool) {
  last_ = nullptr;
  for (auto it = pools_.begin(); it != pools_.end();) {
    Pool& orphan = *it->second;
    if (&orphan == &pool || orphan.number >= kFirstPrivatePool || !orphan.queue->finished_for_good()) {
      ++it;
      continue;
    }
    for (const bool small : {false, true}) {
      auto& blocks = orphan.free_blocks(small);
      for (auto at = blocks.begin(); at != blocks.end();) {
        Block* block = *at;
        if (!block->whole_segment()) {
          ++at;
          continue;
        }
        at = blocks.erase(at);
        block->pool = &pool;
        pool.free_blocks(small).insert(block);
        --orphan.segments;
        ++pool.segments;
      }
    }
    it = orphan.segments == 0 ? pools_.erase(it) : std::next(it);
  }
}

void Pools::retain(PoolNumber number, PoolOptions options) {
  ++private_.try_emplace(number, Private{.options = options}).first->second.users;
}

void Pools::release(PoolNumber number) noexcept {
  const auto found = private_.find(number);
  if (found != private_.end() && found->second.users != 0) --found->second.users;
}

std::size_t Pools::users(PoolNumber number) const {
  const auto found = private_.find(number);
  return found == private_.end() ? 0 : found->second.users;
}

bool Pools::use(PoolNumber number, const std::shared_ptr<Queue>& queue) {
  const auto found = private_.find(number);
  if (found == private_.end()) return false;
  auto& queues = found->second.queues;
  if (std::ranges::find(queues, queue) == queues.end()) queues.push_back(queue);
  return true;
}

Block* Pools::take_fit_of_private(const Pool& pool, const BlockRequest& request) {
  if (pool.number != kProgramPool) return nullptr;
  for (const auto& [number, entry] : private_) {
    if (!entry.options.use_on_oom) continue;
    const auto found = pools_.find({pool.queue.get(), number});
    if (found == pools_.end()) continue;
    if (Block* block = found->second->take_fit(request)) return block;
  }
  return nullptr;
}

bool Pools::may_lose_segments(const Pool& pool, Queues& busy) const {
  if (pool.number == kScratchPool) return true;
  const auto before = busy.size();
  const auto check = [&](const auto& queue) {
    if (!queue->idle()) busy.push_back(queue);
  };
  if (pool.number >= kFirstPrivatePool) {
    const auto& users = private_.at(pool.number);
    if (users.users != 0) return false;
    std::ranges::for_each(users.queues, check);
  }
  check(pool.queue);
  return busy.size() == before;
}

void Pools::forget_unused() {
  last_ = nullptr;
  std::erase_if(pools_, [&](const auto& entry) {
    const Pool& pool = *entry.second;
    return pool.number >= kFirstPrivatePool && pool.segments == 0 && users(pool.number) == 0;
  });
  std::erase_if(private_, [&](const auto& entry) {
    return entry.second.users == 0 && std::ranges::none_of(pools_, [&](const auto& other) {
             return other.second->number == entry.first;
           });
  });
}

}  // namespace vdev
