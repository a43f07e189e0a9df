#include "csrc_pg/task.hpp"

#include <utility>

#include "csrc_pg/errors.hpp"

namespace vccl {

CollectiveTask::CollectiveTask(std::shared_ptr<Communicator> communicator, std::string name,
                               std::vector<Plan> plans, Milliseconds timeout,
                               std::shared_ptr<Outcome> outcome, bool throws)
    : communicator_(std::move(communicator)),
      name_(std::move(name)),
      plans_(std::move(plans)),
      timeout_(timeout),
      outcome_(std::move(outcome)),
      throws_(throws) {}

CollectiveTask::~CollectiveTask() {
  if (ran_) return;
  const Error error(ErrorCode::aborted,
                    "rank " + std::to_string(communicator_->rank()) + " of group " + communicator_->name() +
                        " did not run its " + name_ +
                        ": its stream had failed before, or was closed. The group has to be made anew.");
  communicator_->fail(error.code(), error.what());
  outcome_->finish(torch_error(error), error.code());
}

void CollectiveTask::run() {
  ran_ = true;
  outcome_->started();
  std::exception_ptr error;
  std::optional<ErrorCode> code;
  try {
    for (const auto& plan : plans_) plan.run(*communicator_, timeout_);
  } catch (const Error& failure) {
    error = torch_error(failure);
    code = failure.code();
  } catch (const std::exception& failure) {
    // Not the transport's: a copy ran out of memory, say. The peers must not wait for the rest of this
    // operation.
    communicator_->fail(ErrorCode::system, "rank " + std::to_string(communicator_->rank()) + " of group " +
                                               communicator_->name() + " failed in " + name_ + ": " +
                                               failure.what());
    error = std::current_exception();
  }
  plans_.clear();  // the memory goes back before anybody hears that we are done
  outcome_->finish(error, code);
  if (error && throws_) std::rethrow_exception(error);
}

}  // namespace vccl
