#include "csrc_device/runtime/queues/run_token.hpp"

#include <algorithm>
#include <utility>

namespace vdev {

bool RunToken::held_by_one_of(const std::vector<pthread_t>& threads) const {
  return std::ranges::find(threads, holder_) != threads.end();
}

void RunToken::begin(const QueueItem& item) {
  computes_.store(item.computes(), std::memory_order_relaxed);
  if (item.kind == QueueItem::Kind::kWait) awaited_ = item.point;
}

void RunToken::end(Trash& trash) {
  computes_.store(false, std::memory_order_relaxed);
  if (awaited_) trash.push_back(std::exchange(awaited_, nullptr));
}

std::shared_ptr<Queue> RunToken::blocked_on() const {
  return awaited_ && !awaited_->reached() ? awaited_->queue : nullptr;
}

}  // namespace vdev
