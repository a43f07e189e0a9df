#include "csrc_pg/tasks/collective_task.hpp"

#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_pg/errors.hpp"

namespace vccl {

CollectiveTask::CollectiveTask(std::shared_ptr<Communicator> communicator, std::string name,
                               std::vector<CollectivePlan> plans, Milliseconds timeout,
                               std::shared_ptr<Outcome> outcome, std::shared_ptr<vdev::FailureOwner> failures)
    : communicator_(std::move(communicator)),
      name_(std::move(name)),
      plans_(std::move(plans)),
      timeout_(timeout),
      outcome_(std::move(outcome)),
      failures_(std::move(failures)) {}

CollectiveTask::~CollectiveTask() {
  if (ran_) return;
  const Error error(
      ErrorCode::aborted,
      base::text("rank ", communicator_->rank(), " of group ", communicator_->name(), " did not run its ",
                 name_, ": its stream had failed before, or was closed. The group has to be made anew."));
  communicator_->fail(error.code(), error.what());
  const auto raised = torch_error(error);
  fail(raised);
  outcome_->finish(raised, error.code());
}

// Call this before the plans' memory is freed, and before the stream counts the task as finished.
void CollectiveTask::fail(const std::exception_ptr& error) const {
  if (!failures_) return;
  auto failure = failures_->fail(error);
  for (const auto& plan : plans_) plan.spoil_outputs(failure);
  vdev::report_failure(std::move(failure));
}

void CollectiveTask::run() {
  ran_ = true;
  outcome_->started();
  std::exception_ptr error;
  std::optional<ErrorCode> code;
  try {
    for (const auto& plan : plans_) {
      if (vdev::SpoiledMemory::any()) check_inputs(plan, *communicator_, name_);
      plan.run(*communicator_, timeout_);
    }
  } catch (const Error& failure) {
    error = torch_error(failure);
    code = failure.code();
  } catch (const std::exception& failure) {
    // The exception is not the transport's; a copy may have run out of memory. The peers must not wait for
    // the rest of this operation.
    communicator_->fail(ErrorCode::system,
                        base::text("rank ", communicator_->rank(), " of group ", communicator_->name(),
                                   " failed in ", name_, ": ", failure.what()));
    error = std::current_exception();
  }
  if (error)
    fail(error);
  else if (vdev::SpoiledMemory::any())
    for (const auto& plan : plans_) plan.renew_outputs();
  plans_.clear();  // frees the memory before any waiter sees that the task has ended
  outcome_->finish(error, code);
}

}  // namespace vccl
