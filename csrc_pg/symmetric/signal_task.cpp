#include "csrc_pg/symmetric/signal_task.hpp"

#include <utility>

#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/tasks/collective_task.hpp"

namespace vccl::symmetric {

SignalTask::SignalTask(std::shared_ptr<Connection> connection, std::string name, Milliseconds timeout,
                       Body body)
    : connection_(std::move(connection)), name_(std::move(name)), timeout_(timeout), body_(std::move(body)) {}

void SignalTask::run() {
  try {
    body_(*connection_, Deadline::in(timeout_));
  } catch (const Error& error) {
    vdev::report_failure(connection_->members().failures->fail_unknown(torch_error(error)));
  }
}

void SignalTask::give_up(const vdev::FailurePtr& failure) {
  connection_->fail_unrun(name_, why_given_up(failure));
}

void launch_signals(int card, std::shared_ptr<Connection> connection, std::string name, Milliseconds timeout,
                    vdev::Start start, SignalTask::Body body) {
  const vdev::WithoutGil no_gil;
  const vdev::ActivityScope activity(
      [&] { return vdev::ActivityLabel{vdev::ActivityKind::kCollective, "symm_mem " + name}; });
  vdev::current_stream(card)->enqueue(
      std::make_shared<SignalTask>(std::move(connection), std::move(name), timeout, std::move(body)), start);
}

}  // namespace vccl::symmetric
