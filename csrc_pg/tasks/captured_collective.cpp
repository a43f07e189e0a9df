#include "csrc_pg/tasks/captured_collective.hpp"

#include "base/clock.hpp"
#include "base/text.hpp"
#include "csrc_pg/collectives/collective.hpp"
#include "csrc_pg/dumps/dump_files.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/operations/faults_of_call.hpp"
#include "csrc_pg/tasks/collective_task.hpp"

namespace vccl {

void CapturedCollective::run() {
  if (const auto communicator = communicator_.lock()) {
    auto& recorder = record_.in->recorder();
    const auto now = base::monotonic_ns();
    const auto recorded = record_.in->begin_replay(record_.entries, now);
    recorder.started(recorded, now);
    PlanResult result;
    const auto run = [&] { result = run_plans(*communicator, name_, plans_, timeout_, failures_); };
    const auto strikes = faults::on() ? faults_of_replay(name_, communicator->name()) : nullptr;
    if (strikes)
      run_with_faults(*strikes, run);
    else
      run();
    recorder.ended(recorded, !result.error, base::monotonic_ns());
    if (result.error && result.code != ErrorCode::aborted) dump_after_failure();
  } else {
    fail_as_destroyed();
  }
}

void CapturedCollective::give_up(const vdev::FailurePtr& failure) {
  const auto communicator = communicator_.lock();
  if (!communicator) return fail_as_destroyed();
  const auto error =
      fail_unrun(*communicator, base::text("did not run its ", name_, " of a graph"), why_given_up(failure));
  fail_plans(plans_, failures_, torch_error(error));
}

void CapturedCollective::fail_as_destroyed() const {
  const Error error(ErrorCode::aborted,
                    base::text("a graph replays ", name_,
                               " of a process group that was destroyed: capture the graph anew"));
  fail_plans(plans_, failures_, torch_error(error));
}

}  // namespace vccl
