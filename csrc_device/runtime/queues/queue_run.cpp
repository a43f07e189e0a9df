#include "csrc_device/runtime/queues/queue_run.hpp"

#include <exception>
#include <utility>

#include "csrc_device/runtime/queues/queue_items.hpp"

namespace vdev {

bool QueueRun::of(const Queue* queue) noexcept {
  for (const QueueRun* run = innermost_; run != nullptr; run = run->outer_) {
    if (run->queue_ == queue) return true;
  }
  return false;
}

void QueueRun::begin(const QueueItem& item) noexcept {
  epoch_ = item.epoch;
  enqueued_ = item.enqueued;
}

FailurePtr QueueRun::failure_before() const {
  // A replayed graph is one item, whose earlier tasks may have failed.
  if (auto failure = reported_.first_standing(epoch_)) return failure;
  return failures_.first_standing(epoch_);
}

FailurePtr QueueRun::failure_that_stops(const TaskBody& task) const {
  if (!task.knows_its_memory()) return failure_before();
  if (reported_.empty() && failures_.empty()) [[likely]] {
    return nullptr;
  }
  if (auto failure = reported_.first_blocking()) return failure;
  return failures_.first_blocking();
}

bool QueueRun::run_or_fail(TaskBody& task) const {
  try {
    task.run();
    return true;
  } catch (...) {
    auto error = std::current_exception();
    give_up_part(task, task.knows_its_memory() ? program_errors().fail(std::move(error))
                                               : program_errors().fail_unknown(std::move(error)));
    return false;
  }
}

}  // namespace vdev
