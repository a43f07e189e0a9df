// How the failures of tasks are raised, and how a queue gives up what it holds.
#include <algorithm>
#include <utility>

#include "csrc_device/runtime/queue.hpp"

namespace vdev {

FailurePtr standing_failure(const std::vector<FailurePtr>& failures, std::uint64_t epoch) {
  FailurePtr first;
  for (const auto& failure : failures) {
    if (!failure->stands(epoch)) continue;
    if (!failure->raised()) return failure;
    if (!first) first = failure;
  }
  return first;
}

void raise_one_for_all(const std::vector<FailurePtr>& failures, std::uint64_t epoch) {
  const auto first = standing_failure(failures, epoch);
  if (!first) return;
  for (const auto& failure : failures) failure->claim();
  first->raised_for_stream();
  first->raise();
}

void raise_failure(const Completion& point, std::uint64_t epoch) {
  raise_one_for_all(point.failures, epoch);
}

void give_up_part(TaskBody& task, const FailurePtr& failure) {
  try {
    task.give_up(failure);
  } catch (...) {
    // A lack of memory, for instance, may leave memory as if it were good, and so blocks the stream.
    report_failure(program_errors().fail_unknown(std::current_exception()));
  }
  // The tasks behind a task of which nobody knows what it writes are given up, too. If the program has dealt
  // with the failure meanwhile, it does not know yet of what was given up since.
  if (task.knows_its_memory() || (failure->blocks() && failure->stands(error_epoch())))
    report_failure(failure);
  else
    report_failure(failure->owner()->fail_unknown(failure->error()));
}

std::vector<FailurePtr> Queue::failures() const {
  check_fork();
  Lock lock(mutex_);
  return failures_;
}

void Queue::raise(std::uint64_t epoch) {
  raise_one_for_all(failures(), epoch);
}

void Queue::raise_before_reading(std::uint64_t epoch) {
  for (const auto& failure : failures()) {
    const bool concerns_caller =
        (failure->blocks() && failure->stands(epoch)) || failure->settled_since(epoch) ||
        (!failure->waits_to_be_dealt_with() && failure->stands(epoch) && failure->claim());
    if (concerns_caller) failure->raise();
  }
}

void Queue::abandon(std::exception_ptr error) {
  if (inherited()) return;
  const auto failure = program_errors().fail_unknown(std::move(error));
  Trash waits;
  Lock lock(mutex_);
  for (Item& item : items_) {
    if (item.kind == Kind::kTask) {
      item.abandoned = failure;
    } else if (item.kind == Kind::kWait) {
      // An empty point keeps the numbering, so that a thread that waits for this item still sees it finish,
      // in order.
      count_blocker(item, -1);
      waits.push_back(std::exchange(item.point, nullptr));
      item.kind = Kind::kPoint;
    }
  }
  // If a task is running, the thread that runs it does the rest when the task returns, because it may use its
  // memory until then.
  const bool runs = running_.load(std::memory_order_relaxed);
  if (!runs) return run(lock, pushed_.load(std::memory_order_relaxed), Runner::kHelperToTheEnd);
  if (onlookers_ > 0) progress_.notify_all();
}

QueuePoints::QueuePoints() {
  for (const auto& queue : queues_alive()) points_.emplace_back(queue, queue->last());
}

bool QueuePoints::passed() const {
  return std::ranges::all_of(points_, [](const auto& point) {
    const auto queue = point.first.lock();
    return !queue || queue->done(point.second);
  });
}

}  // namespace vdev
