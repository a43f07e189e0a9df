#include "csrc_pg/handles/work.hpp"

#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/schedule.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/handles/callback_pool.hpp"
#include "csrc_pg/operations/profiler_names.hpp"

namespace vccl {

using vdev::WithoutGil;

namespace {

// Returns the tensors whose shapes the profiler shows, if one is running. A receive shows the tensor that it
// fills, as in other backends.
std::optional<std::vector<at::Tensor>> profiled(const std::vector<at::Tensor>& inputs,
                                                const std::vector<at::Tensor>& outputs) {
  return at::hasCallbacks() ? std::make_optional(inputs.empty() ? outputs : inputs) : std::nullopt;
}

// Opens the profiler's range as a handle does, and ends the range.
class ProfiledLaunch final : public c10d::Work {
 public:
  ProfiledLaunch(int rank, c10d::OpType type, const std::string& title, const std::vector<at::Tensor>& shown)
      : Work(rank, type, title.c_str(), shown) {
    if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  }
};

}  // namespace

void profile_launch(int rank, c10d::OpType type, const char* name, const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& outputs) {
  if (const auto shown = profiled(inputs, outputs))
    const auto launch = c10::make_intrusive<ProfiledLaunch>(rank, type, title_of(name), *shown);
}

namespace {

// Only the profiler needs the inputs. Kept longer, their memory could not be reused.
WorkVccl::Description without_inputs(WorkVccl::Description description) {
  description.inputs.clear();
  return description;
}

std::unique_ptr<LeakCheck> check_for_leak(const WorkVccl::Description& description,
                                          const WorkVccl::Place& place) {
  if (!program_checks().leaks) return nullptr;
  const auto communicator = place.communicator.lock();
  return std::make_unique<LeakCheck>(communicator ? communicator->own_text_in_group() : "a rank",
                                     base::text(description.name, " (number ", description.sequence, ")"));
}

}  // namespace

WorkVccl::WorkVccl(Description description, Place place, vdev::Event end, std::shared_ptr<Outcome> outcome)
    : Work(description.rank, description.type, title_of(description.name).c_str(),
           profiled(description.inputs, description.outputs)),
      description_(without_inputs(std::move(description))),
      place_(std::move(place)),
      end_(std::move(end)),
      outcome_(std::move(outcome)),
      leak_(check_for_leak(description_, place_)) {
  // The profiler's range covers the launch. Without this call, it would stay open until somebody called
  // finish().
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

bool WorkVccl::isCompleted() {
  const bool reached = end_.reached();
  if (!reached) base::schedule::point(base::schedule::Point::poll);
  if (!reached) return false;  // an answer that orders nothing, so nobody has waited
  note_use();
  if (vdev::races::is_on()) vdev::races::host_waits_for(description_.watched, 0, nullptr);
  let_go_of_memory();
  return true;
}

bool WorkVccl::isSuccess() const {
  return end_.reached() && !exception();
}

std::exception_ptr WorkVccl::exception() const {
  return outcome_->error();
}

int WorkVccl::sourceRank() const {
  const bool receive =
      description_.type == c10d::OpType::RECV || description_.type == c10d::OpType::RECVANYSOURCE;
  TORCH_CHECK(receive, description_.name, " has no source rank: only a receive has");
  const int source = outcome_->source();
  TORCH_CHECK(source >= 0, description_.name,
              " has no source rank yet: it has not ended, or has failed. wait() for it first.");
  return source;
}

std::vector<at::Tensor> WorkVccl::result() {
  return results();
}

// ProcessGroupNCCL gathers into one tensor, from which it fills the program's list. Here the list is filled
// in place, so whoever asks gets a copy, made on the current stream.
std::vector<at::Tensor> WorkVccl::results() const {
  if (!description_.stacks_outputs) return description_.outputs;
  const c10::NoGradGuard no_grad;
  return {at::stack(description_.outputs)};
}

void WorkVccl::raise_known_error() const {
  // An operation in a graph has no outcome yet, and its replays report theirs to the stream.
  if (end_.captured() || !end_.reached()) return;
  // Only the operation's own failure concerns the caller, unless the operation stands for everything before
  // it.
  if (description_.blocks_host) end_.synchronize();
  if (auto error = exception()) std::rethrow_exception(error);
}

void WorkVccl::wait_on_stream() const {
  const auto current = vdev::current_stream(place_.device.index());
  current->wait(end_);
  if (vdev::races::is_on()) vdev::races::wait(*current, description_.watched);
  let_go_of_memory();  // only now: later tasks of the stream come after the operation
}

void WorkVccl::let_go_of_memory() const {
  if (description_.memory) description_.memory->let_go(description_.watched);
}

void WorkVccl::wait_on_host(std::chrono::milliseconds timeout) const {
  WithoutGil without_gil;
  const vdev::races::WaitClock wait;
  const auto watch_wait = [&] {
    if (vdev::races::is_on())
      vdev::races::host_waits_for(description_.watched, wait.nanoseconds(), "Work.wait");
  };
  if (timeout == kNoTimeout) {
    end_.wait();  // bounded by the timeouts of the queued operations
    watch_wait();
    return;
  }
  const bool reached = end_.wait_for(std::chrono::nanoseconds(timeout).count());
  vdev::raise_interruption();
  if (reached) return watch_wait();
  const auto communicator = place_.communicator.lock();
  const std::string who = communicator ? communicator->own_text_in_group() : base::text("rank ", rank_);
  const std::string late =
      base::text(description_.name, " (number ", description_.sequence,
                 " of the group) did not end within the ", timeout.count(), " ms that wait() was given");
  const auto& aborts = description_.waits.aborts;
  if (aborts) aborts->abort(base::text(who, " aborted the group: ", late));
  TORCH_CHECK_WITH(DistBackendError, false, who, ": ", late,
                   aborts ? ". So the group was aborted, as NCCL's is: destroy it, and make a new one."
                          : ". It goes on: wait() again, or abort the group.");
}

void WorkVccl::synchronize() {
  note_use();
  if (on_card())
    wait_on_stream();
  else
    wait_on_host(kNoTimeout);
  leave_registry();
}

// Inside allow_inflight_collective_as_graph_input_ctx() torch keeps each Work for wait_tensor(), which nobody
// needs to call after this wait.
void WorkVccl::leave_registry() {
  if (!c10d::allow_inflight_collective_as_graph_input()) return;
  c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(this));
}

// Records each wait under the number of the operation that it waits for, as ProcessGroupNCCL does.
void WorkVccl::record_wait() const {
  if (!description_.group || !at::hasCallbacks()) return;
  using c10d::OpType;
  const auto type = description_.type;
  const bool message = type == OpType::SEND || type == OpType::RECV || type == OpType::RECVANYSOURCE;
  RECORD_PARAM_COMMS(std::make_tuple(static_cast<std::int64_t>(description_.sequence), message),
                     std::make_tuple(description_.group->uid, description_.group->description), rank_, "wait",
                     0, 0, at::kByte, std::vector<std::int64_t>(), std::vector<std::int64_t>(), -1, -1,
                     description_.group->size);
}

bool WorkVccl::wait(std::chrono::milliseconds timeout) {
  note_use();
  record_wait();
  if (!on_card() || description_.blocks_host || timeout != kNoTimeout) wait_on_host(timeout);
  std::exception_ptr error;
  try {
    raise_known_error();
  } catch (...) {
    error = std::current_exception();
  }
  // The stream waits after an error, too: whether the stream has the failure must not depend on whether the
  // operation ended before or after this call. A message's failure is on no other stream.
  if (on_card()) wait_on_stream();
  if (error) std::rethrow_exception(error);
  leave_registry();
  return true;
}

void WorkVccl::blockCurrentStream() {
  note_use();
  if (on_card()) {
    wait_on_stream();
    return;
  }
  const auto stream = vdev::current_stream(vdev::current_card());
  stream->wait(end_);
  if (vdev::races::is_on()) vdev::races::wait(*stream, description_.watched);
  // Tasks on CPU tensors do not report their errors to a stream, but this stream is about to use their
  // results. Nobody sees who reads memory of the CPU, so the tasks behind the failure are given up, such as
  // copies from the results.
  stream->enqueue(vdev::task_without_memory([outcome = outcome_, failures = place_.failures] {
    if (auto error = outcome->error()) vdev::report_failure(failures->fail_unknown(error));
  }));
}

void WorkVccl::abort() {
  if (auto communicator = place_.communicator.lock())
    communicator->abort(base::text(description_.name, " was aborted by its Work"));
}

c10::intrusive_ptr<c10::ivalue::Future> WorkVccl::getFuture() {
  note_use();
  std::call_once(future_made_, [this] {
    future_ = on_card() && !description_.blocks_host ? make_card_future() : make_host_future();
  });
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkVccl::make_card_future() const {
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::vector{place_.device});
  // Completing the future records an event on the current stream of the value's device, for which every
  // thread that waits for the future then waits. So the communicator's stream must be current. If that stream
  // is gone, everything has run.
  const auto stream = place_.stream ? place_.stream->lock() : stream_behind(place_.device.index(), end_);
  std::optional<c10::StreamGuard> guard;
  if (stream && vdev::races::is_on()) vdev::races::wait(*stream, description_.watched);
  if (stream) guard.emplace(vdev::to_torch(*stream));
  if (description_.type != c10d::OpType::SEND) {
    future->markCompleted(c10::IValue(results()));
    return future;
  }
  // An event is recorded on each device that the value has memory on. A send has no result, and its future
  // has to order the sent memory nevertheless.
  const auto on_the_card = at::empty({0}, at::TensorOptions().device(place_.device));
  future->markCompleted(c10::IValue(description_.outputs),
                        std::vector{on_the_card.storage().getWeakStorageImpl()});
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkVccl::make_host_future() const {
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::ofTensors(), on_card() ? std::vector{place_.device} : std::vector<c10::Device>{});
  const auto complete = [future, outputs = description_.outputs,
                         watched = description_.watched](const std::exception_ptr& error) {
    // Whoever waits for the future is not seen. So all threads of C++, and the main thread, count as waiting.
    if (vdev::races::is_on() && watched) vdev::races::host_waits_for(watched);
    if (error)
      future->setError(error);
    else
      future->markCompleted(c10::IValue(outputs));
  };
  if (outcome_->finished()) {
    complete(outcome_->error());  // nobody has added a callback yet
  } else {
    outcome_->when_finished([complete](std::exception_ptr error) { run_callback([=] { complete(error); }); });
  }
  return future;
}

namespace {

c10d::WorkResult result_of(const Outcome& outcome) {
  if (!outcome.error()) return c10d::WorkResult::SUCCESS;
  const auto code = outcome.error_code();
  if (!code) return c10d::WorkResult::UNKNOWN;
  return *code == ErrorCode::timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
}

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> WorkVccl::getFutureResult() {
  note_use();
  std::call_once(result_future_made_, [this] {
    result_future_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    const auto complete = [future = result_future_, outcome = outcome_] {
      future->markCompleted(c10::IValue(static_cast<std::int64_t>(result_of(*outcome))));
    };
    // This does not run on the stream's worker, because a callback of the future may wait for the stream.
    if (outcome_->finished())
      complete();
    else
      outcome_->when_finished([complete](std::exception_ptr) { run_callback(complete); });
  });
  return result_future_;
}

float WorkVccl::getDuration() const {
  TORCH_CHECK(outcome_->finished(), "the duration of ", description_.name, " (number ", description_.sequence,
              " of the group) is known once it has ended: wait() for it, or look at is_completed(), first");
  return outcome_->duration_ms();
}

std::uint64_t WorkVccl::getSequencenumber() const {
  return description_.sequence;
}

}  // namespace vccl
