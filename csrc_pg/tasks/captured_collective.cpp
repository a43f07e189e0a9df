#include "csrc_pg/tasks/captured_collective.hpp"

#include "base/text.hpp"
#include "csrc_pg/errors.hpp"
#include "csrc_pg/tasks/collective_task.hpp"

namespace vccl {

void CapturedCollective::run() const {
  const auto communicator = communicator_.lock();
  if (communicator) {
    run_plans(*communicator, name_, plans_, timeout_, failures_);
    return;
  }
  const Error error(ErrorCode::aborted,
                    base::text("a graph replays ", name_,
                               " of a process group that was destroyed: capture the graph anew"));
  fail_plans(plans_, failures_, torch_error(error));
}

}  // namespace vccl
