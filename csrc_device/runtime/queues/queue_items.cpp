#include "csrc_device/runtime/queues/queue_items.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.hpp"
#include "csrc_device/runtime/memory/memory_clock.hpp"
#include "csrc_device/runtime/queue.hpp"
#include "csrc_device/runtime/queues/deferred_task_timer.hpp"
#include "csrc_device/runtime/queues/queue_run.hpp"
#include "csrc_device/runtime/queues/stream_order.hpp"

namespace vdev {

bool QueueItem::execute(bool gives_up) {
  if (kind == Kind::kTask) {
    QueueRun& run = *QueueRun::innermost();
    if (const auto failure = abandoned ? abandoned : run.failure_that_stops(*task)) {
      give_up_part(*task, failure);
    } else {
      const ActivityRun activity(std::move(launch));
      run.run_or_fail(*task);
    }
  } else {
    // A wait is never given up: what comes behind it must still come after the point.
    try {
      if (!point->reached() && !point->queue->help(point->sequence, gives_up)) return false;
    } catch (...) {
      report_failure(program_errors().fail_unknown(std::current_exception()));
    }
    if (point->reached()) {
      for (const auto& inherited : point->failures) {
        if (inherited->stands(epoch)) report_failure(inherited);
      }
    }
  }
  task = nullptr;
  point.reset();
  return true;
}

void QueueItems::withdraw() noexcept {
  if (deferred_ > 0 && !blocking_) waiter_came();
  if (shown_busy_) leads_->count_busy(-1);
}

std::uint64_t QueueItems::append(QueueItem&& item, const std::shared_ptr<const Lane>& lane) {
  const std::uint64_t sequence = last_number() + 1;
  // Made first, so that a lack of memory leaves the queue as it was.
  if (item.kind == QueueItem::Kind::kTask && is_recording()) item.launch = make_launch(lane);
  item.sequence = sequence;
  item.epoch = error_epoch();
  item.enqueued = MemoryClock::now();
  const QueueItem& added = items_.emplace_back(std::move(item));
  pushed_.store(sequence, std::memory_order_release);
  urgent_ += added.urgent;
  count_blocker(added, 1);
  if (added.is_deferred()) count_deferred(1);
  show_length();
  return sequence;
}

QueueItem QueueItems::take() {
  QueueItem item = std::move(items_.front());
  items_.pop_front();
  show_length();
  urgent_ -= item.urgent;
  if (item.is_deferred()) count_deferred(-1);
  return item;
}

void QueueItems::put_back(QueueItem&& wait) {
  items_.push_front(std::move(wait));
  show_length();
}

void QueueItems::finish(const QueueItem& item) {
  count_blocker(item, -1);
  finished_.store(item.sequence, std::memory_order_release);
}

void QueueItems::abandon(const FailurePtr& failure, Trash& trash) {
  for (QueueItem& item : items_) {
    if (item.kind == QueueItem::Kind::kTask) {
      item.abandoned = failure;
    } else if (item.kind == QueueItem::Kind::kWait) {
      count_blocker(item, -1);
      trash.push_back(std::exchange(item.point, nullptr));
      item.kind = QueueItem::Kind::kPoint;
    }
  }
}

bool QueueItems::has_tasks() const {
  return std::ranges::any_of(items_, [](const auto& item) { return item.kind == QueueItem::Kind::kTask; });
}

const QueueItem* QueueItems::next_ready() const {
  const auto next = std::ranges::find_if(
      items_, [](const auto& item) { return item.kind != QueueItem::Kind::kPoint && !item.abandoned; });
  if (next == items_.end() || (next->kind == QueueItem::Kind::kWait && !next->point->reached()))
    return nullptr;
  return &*next;
}

std::int64_t QueueItems::deferred_for() const {
  return deferred_ == 0 ? -1 : base::monotonic_ns() - deferred_at_;
}

/// Tells the card's other streams whether this one, of high priority, has items that have not begun.
void QueueItems::show_length() {
  if (leads_ == nullptr || shown_busy_ != items_.empty()) return;
  shown_busy_ = !shown_busy_;
  leads_->count_busy(shown_busy_ ? 1 : -1);
}

void QueueItems::count_blocker(const QueueItem& item, int change) {
  if (item.blocks()) blockers_.fetch_add(static_cast<std::size_t>(change), std::memory_order_relaxed);
}

void QueueItems::count_deferred(int change) {
  const bool had_some = deferred_ > 0;
  deferred_ += change;
  const bool has_some = deferred_ > 0;
  if (has_some == had_some || blocking_) return;  // in a blocking queue, the enqueuer waits
  if (!has_some) return waiter_came();
  deferred_at_ = base::monotonic_ns();
  expect_waiter(deferred_at_);
}

}  // namespace vdev
