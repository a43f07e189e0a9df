#include "csrc_device/runtime/task.hpp"

#include <exception>
#include <utility>

#include "csrc_device/runtime/queues/queue_run.hpp"

namespace vdev {

void report_failure(FailurePtr failure) {
  if (QueueRun* run = QueueRun::innermost()) run->report(std::move(failure));
}

FailurePtr failure_before_this_task() {
  const QueueRun* run = QueueRun::innermost();
  return run ? run->failure_before() : nullptr;
}

bool run_part(TaskBody& part) {
  const QueueRun& run = *QueueRun::innermost();
  const auto failure = run.failure_that_stops(part);
  if (!failure) return run.run_or_fail(part);
  give_up_part(part, failure);
  return false;
}

void give_up_part(TaskBody& part, const FailurePtr& failure) {
  try {
    part.give_up(failure);
  } catch (...) {
    // A lack of memory, for instance, may leave memory as if it were good, and so blocks the stream.
    report_failure(program_errors().fail_unknown(std::current_exception()));
  }
  // The tasks behind a task of which nobody knows what it writes are given up, too. If the program has dealt
  // with the failure meanwhile, it does not know yet of what was given up since.
  if (part.knows_its_memory() || (failure->blocks() && failure->stands(error_epoch())))
    report_failure(failure);
  else
    report_failure(failure->owner()->fail_unknown(failure->error()));
}

}  // namespace vdev
