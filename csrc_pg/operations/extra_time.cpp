#include "csrc_pg/operations/extra_time.hpp"

#include <numeric>
#include <utility>

namespace vccl {

void ExtraTime::add(Milliseconds time) {
  std::lock_guard lock(mutex_);
  unclaimed_.push_back(time);
  sum_.fetch_add(time.count(), std::memory_order_relaxed);
  any_unclaimed_.store(true, std::memory_order_relaxed);
}

void ExtraTime::begin(const std::shared_ptr<ExtraTime>& extra, Outcome& outcome) {
  if (!extra->any_unclaimed_.load(std::memory_order_relaxed)) return;
  Milliseconds claimed{0};
  {
    std::lock_guard lock(extra->mutex_);
    claimed = std::accumulate(extra->unclaimed_.begin(), extra->unclaimed_.end(), claimed);
    extra->unclaimed_.clear();
    extra->any_unclaimed_.store(false, std::memory_order_relaxed);
  }
  if (claimed.count() == 0) return;
  outcome.when_finished([extra, claimed](std::exception_ptr) {
    extra->sum_.fetch_sub(claimed.count(), std::memory_order_relaxed);
  });
}

}  // namespace vccl
