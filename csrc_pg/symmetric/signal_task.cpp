#include "csrc_pg/symmetric/signal_task.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "csrc_device/runtime/activity.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/tasks/collective_task.hpp"

namespace vccl::symmetric {
namespace {

/// Holds the end of the last task of each stream that has had one.
struct LastSignals {
  std::mutex mutex;
  std::map<std::pair<int, std::int64_t>, vdev::Event> ends;  // by card and stream
};

LastSignals& last_signals() {
  static auto* all = new LastSignals;  // never destroyed: it is used at the interpreter's exit
  return *all;
}

}  // namespace

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
  const auto stream = vdev::current_stream(card);
  stream->enqueue(
      std::make_shared<SignalTask>(std::move(connection), std::move(name), timeout, std::move(body)), start);
  const auto end = stream->record();
  if (end.captured()) return;
  auto& last = last_signals();
  std::lock_guard lock(last.mutex);
  last.ends.insert_or_assign({card, stream->id()}, end);
}

void finish_signals(Milliseconds patience) {
  const vdev::WithoutGil no_gil;
  const auto deadline = Deadline::in(patience);
  auto& last = last_signals();
  std::lock_guard lock(last.mutex);
  for (const auto& [stream, end] : std::exchange(last.ends, {})) {
    const std::chrono::nanoseconds left = deadline.at - Clock::now();
    if (left.count() > 0) end.wait_for(left.count());
  }
}

}  // namespace vccl::symmetric
