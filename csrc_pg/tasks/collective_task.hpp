// One collective, or several that were coalesced, as a task of a stream.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc_device/runtime/task.hpp"
#include "csrc_pg/operations/outcome.hpp"
#include "csrc_pg/tasks/collective_plan.hpp"

namespace vccl {

/// Says how the plans of a task have ended: both are null after success.
struct PlanResult {
  std::exception_ptr error;
  std::optional<ErrorCode> code;
};

/// Returns the error of an operation that did not run, and fails the communicator with it. `what` begins with
/// a verb: "did not run its all_reduce".
Error fail_unrun(Communicator& communicator, const std::string& what, const std::string& why);
/// Returns the `why` of a task that is given up because of `failure`.
std::string why_given_up(const vdev::FailurePtr& failure);
/// Makes `plans` fail with `error`: spoils their outputs, and reports the failure to the stream that runs the
/// caller. Does nothing if `failures` is null. Call this before the plans' memory is freed, and before the
/// stream counts the task as finished.
void fail_plans(const std::vector<CollectivePlan>& plans, const std::shared_ptr<vdev::FailureOwner>& failures,
                const std::exception_ptr& error);
/// Runs the plans one after the other. A failure is the group's, and fail_plans() gets it.
PlanResult run_plans(Communicator& communicator, const std::string& name,
                     const std::vector<CollectivePlan>& plans, Milliseconds timeout,
                     const std::shared_ptr<vdev::FailureOwner>& failures);

/// Runs the plans once, one after the other, and writes the outcome. On a card, a failure spoils the outputs
/// of all plans and is reported to the stream. A task may be given up, or destroyed without having run. Such
/// a task fails the communicator: the peers have run their tasks, and later operations of this rank would be
/// paired with the wrong operations of the peers.
class CollectiveTask final : public vdev::TaskBody {
 public:
  /// `name` is the operation's, for messages. `failures` is the group's owner of failures for tensors on a
  /// card, and null for CPU tensors, whose errors only the outcome reports.
  CollectiveTask(std::shared_ptr<Communicator> communicator, std::string name,
                 std::vector<CollectivePlan> plans, Milliseconds timeout, std::shared_ptr<Outcome> outcome,
                 std::shared_ptr<vdev::FailureOwner> failures);
  ~CollectiveTask() override;
  CollectiveTask(const CollectiveTask&) = delete;
  CollectiveTask& operator=(const CollectiveTask&) = delete;

  /// Runs the plans. The timeout of each plan begins when its turn comes, because the peers are not to blame
  /// for what the stream had to do before.
  void run() override;
  void give_up(const vdev::FailurePtr& failure) override;

 private:
  void did_not_run(const std::string& why);

  // The task does not keep the stream, because a stream must not be destroyed by a task on its own worker.
  const std::shared_ptr<Communicator> communicator_;
  const std::string name_;
  std::vector<CollectivePlan> plans_;
  const Milliseconds timeout_;
  const std::shared_ptr<Outcome> outcome_;
  const std::shared_ptr<vdev::FailureOwner> failures_;
  bool ended_ = false;
};

}  // namespace vccl
