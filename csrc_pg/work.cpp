#include "csrc_pg/work.hpp"

#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>

#include "csrc_device/runtime/card.hpp"
#include "csrc_device/torch/gil.hpp"
#include "csrc_device/torch/streams.hpp"
#include "csrc_pg/callback_pool.hpp"

namespace vccl {

using vdev::WithoutGil;

namespace {

// Shapes are for the profiler only.
std::optional<std::vector<at::Tensor>> profiled(const std::vector<at::Tensor>& inputs) {
  return at::hasCallbacks() ? std::make_optional(inputs) : std::nullopt;
}

}  // namespace

WorkVccl::WorkVccl(Description description, const std::string& title,
                   const std::shared_ptr<DeviceCommunicator>& where, vdev::Event end,
                   std::shared_ptr<Outcome> outcome)
    : Work(description.rank, description.type, title.c_str(), profiled(description.inputs)),
      description_(std::move(description)),
      device_(where->device()),
      communicator_(where->communicator()),
      stream_(where->stream()),
      end_(std::move(end)),
      outcome_(std::move(outcome)) {
  // The profiler's range is the launch: without this it would stay open until somebody called finish().
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

bool WorkVccl::isCompleted() {
  return end_.reached();
}

bool WorkVccl::isSuccess() const {
  return end_.reached() && !exception();
}

std::exception_ptr WorkVccl::exception() const {
  // The stream's error first: where that had failed before and skipped the task, it is the cause.
  if (end_.reached())
    if (auto error = end_.error()) return error;
  return outcome_->error();
}

std::vector<at::Tensor> WorkVccl::result() {
  return description_.outputs;
}

void WorkVccl::raise_known_error() const {
  if (!end_.reached()) return;
  end_.synchronize();  // where nobody has raised it yet, so that the stream will not raise it once more
  if (auto error = exception()) std::rethrow_exception(error);
}

void WorkVccl::wait_on_stream() const {
  vdev::current_stream(device_.index())->wait(end_);
}

void WorkVccl::wait_on_host(std::chrono::milliseconds timeout) const {
  WithoutGil without_gil;
  if (timeout == kNoTimeout) {
    end_.wait();  // bounded by the timeouts of what is queued
    return;
  }
  const bool reached = end_.wait_for(std::chrono::nanoseconds(timeout).count());
  TORCH_CHECK_WITH(DistBackendError, reached, "rank ", rank_, ": ", description_.name, " (number ",
                   description_.sequence, " of the group) did not end within the ", timeout.count(),
                   " ms that wait() was given. It goes on: wait() again, or abort the group.");
}

void WorkVccl::synchronize() {
  if (on_card())
    wait_on_stream();
  else
    wait_on_host(kNoTimeout);
}

bool WorkVccl::wait(std::chrono::milliseconds timeout) {
  if (!on_card() || description_.blocks_host || timeout != kNoTimeout) wait_on_host(timeout);
  raise_known_error();
  if (on_card()) wait_on_stream();
  return true;
}

void WorkVccl::blockCurrentStream() {
  synchronize();
}

void WorkVccl::abort() {
  if (auto communicator = communicator_.lock())
    communicator->abort(description_.name + " was aborted by its Work");
}

c10::intrusive_ptr<c10::ivalue::Future> WorkVccl::getFuture() {
  std::call_once(future_made_, [this] { future_ = on_card() ? make_card_future() : make_cpu_future(); });
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkVccl::make_card_future() const {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::vector{device_});
  // Completing records an event on the current stream of the value's device, which those who wait for the
  // future will wait for: the communicator's stream, then. Where that stream is gone, everything has run.
  const auto stream = stream_.lock();
  std::optional<c10::StreamGuard> guard;
  if (stream) guard.emplace(vdev::to_torch(*stream));
  future->markCompleted(c10::IValue(description_.outputs));
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkVccl::make_cpu_future() const {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  const auto complete = [future, outputs = description_.outputs](const std::exception_ptr& error) {
    if (error)
      future->setError(error);
    else
      future->markCompleted(c10::IValue(outputs));
  };
  if (outcome_->finished()) {
    complete(outcome_->error());  // nobody has hung anything on it yet
  } else {
    outcome_->when_finished([complete](std::exception_ptr error) { run_callback([=] { complete(error); }); });
  }
  return future;
}

float WorkVccl::getDuration() const {
  return outcome_->duration_ms();
}

std::uint64_t WorkVccl::getSequencenumber() const {
  return description_.sequence;
}

}  // namespace vccl
