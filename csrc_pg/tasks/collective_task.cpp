#include "csrc_pg/tasks/collective_task.hpp"

#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_pg/operations/errors.hpp"

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
  if (!ended_) did_not_run("its call has failed");
}

Error fail_unrun(Communicator& communicator, const std::string& what, const std::string& why) {
  Error error(ErrorCode::aborted, base::text(communicator.own_text_in_group(), " ", what, ": ", why,
                                             ". The group has to be made anew."));
  communicator.fail(error.code(), error.what());
  return error;
}

std::string why_given_up(const vdev::FailurePtr& failure) {
  return base::text("what came before it on its stream has failed: ", text_of(failure->error()));
}

void CollectiveTask::did_not_run(const std::string& why) {
  ended_ = true;
  const auto error = fail_unrun(*communicator_, base::text("did not run its ", name_), why);
  const auto raised = torch_error(error);
  fail_plans(plans_, failures_, raised);
  plans_.clear();
  outcome_->finish(raised, error.code());
}

void CollectiveTask::give_up(const vdev::FailurePtr& failure) {
  did_not_run(why_given_up(failure));
}

void CollectiveTask::run() {
  ended_ = true;
  outcome_->started();
  const auto result = run_plans(*communicator_, name_, plans_, timeout_, failures_);
  plans_.clear();  // frees the memory before any waiter sees that the task has ended
  outcome_->finish(result.error, result.code);
}

void fail_plans(const std::vector<CollectivePlan>& plans, const std::shared_ptr<vdev::FailureOwner>& failures,
                const std::exception_ptr& error) {
  if (!failures) return;
  auto failure = failures->fail(error);
  for (const auto& plan : plans) plan.spoil_outputs(failure);
  vdev::report_failure(std::move(failure));
}

PlanResult run_plans(Communicator& communicator, const std::string& name,
                     const std::vector<CollectivePlan>& plans, Milliseconds timeout,
                     const std::shared_ptr<vdev::FailureOwner>& failures) {
  PlanResult result;
  try {
    for (const auto& plan : plans) {
      if (vdev::SpoiledMemory::any()) check_inputs(plan, communicator, name);
      plan.run(communicator, timeout);
    }
  } catch (const Error& failure) {
    result = {torch_error(failure), failure.code()};
  } catch (const std::exception& failure) {
    // The exception is not the transport's; a copy may have run out of memory. The peers must not wait for
    // the rest of this operation.
    communicator.fail(ErrorCode::system, base::text(communicator.own_text_in_group(), " failed in ", name,
                                                    ": ", failure.what()));
    result.error = std::current_exception();
  }
  if (result.error)
    fail_plans(plans, failures, result.error);
  else if (vdev::SpoiledMemory::any())
    for (const auto& plan : plans) plan.renew_outputs();
  return result;
}

}  // namespace vccl
