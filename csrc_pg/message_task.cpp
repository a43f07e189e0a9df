#include "csrc_pg/message_task.hpp"

#include <utility>

#include "csrc_pg/errors.hpp"

namespace vccl {

JointEnd::JointEnd(std::string name, int parts, std::shared_ptr<Outcome> outcome, bool tells_streams,
                   std::function<void()> afterwards)
    : outcome_(std::move(outcome)),
      tells_streams_(tells_streams),
      afterwards_(std::move(afterwards)),
      left_(parts),
      promise_(std::move(name)) {}

JointEnd::~JointEnd() {
  // Only where a part never told its end, as nobody was left to do so.
  if (left_ > 0) {
    const Error error(ErrorCode::aborted, "the operation was given up before its end");
    if (!error_) error_ = torch_error(error), code_ = error.code();
    finish();
  }
}

void JointEnd::part_ended(std::exception_ptr error, std::optional<ErrorCode> code, int source) noexcept {
  if (source >= 0) outcome_->set_source(source);
  {
    std::lock_guard lock(mutex_);
    if (error && !error_) {
      error_ = std::move(error);
      code_ = code;
    }
    if (--left_ != 0) return;
  }
  finish();
}

void JointEnd::finish() noexcept {
  // The last part has ended: nobody else is at the members. The outcome first, so that it is known to whoever
  // sees the event reached.
  outcome_->finish(error_, code_);
  promise_.fulfil(tells_streams_ ? error_ : nullptr);
  if (afterwards_) afterwards_();
}

MessageTask::MessageTask(std::shared_ptr<Communicator> communicator, std::string name,
                         std::vector<MessageCall> calls, Milliseconds timeout, std::shared_ptr<JointEnd> end)
    : communicator_(std::move(communicator)),
      name_(std::move(name)),
      calls_(std::move(calls)),
      timeout_(timeout),
      end_(std::move(end)) {}

MessageTask::~MessageTask() {
  if (ran_) return;
  const Error error(ErrorCode::aborted,
                    "rank " + std::to_string(communicator_->rank()) + " of group " + communicator_->name() +
                        " did not begin its " + name_ +
                        ": its stream had failed before, or was closed. The group has to be made anew.");
  communicator_->fail(error.code(), error.what());
  const auto parts = calls_.size();
  calls_.clear();
  for (std::size_t i = 0; i < parts; ++i) end_->part_ended(torch_error(error), error.code());
}

void MessageTask::run() noexcept {
  ran_ = true;
  end_->started();
  const auto deadline = Deadline::in(timeout_);
  for (auto& call : std::exchange(calls_, {})) post(std::move(call), deadline);
}

void MessageTask::post(MessageCall call, const Deadline& deadline) {
  const std::string who = "rank " + std::to_string(communicator_->rank()) + " of group " +
                          communicator_->name() + " could not begin its " + name_ + ": ";
  // Not what goes wrong with the message, which the transport tells `done`: it cannot work at all, or a copy
  // ran out of memory. The peer must not wait for the message.
  const auto failed = [&](std::exception_ptr error, ErrorCode code, const std::string& what) {
    communicator_->fail(code, what);
    end_->part_ended(std::move(error), code);
  };
  try {
    auto& messages = communicator_->messages();
    call.plan.copy_in();
    const auto bytes = call.bytes;
    // The communicator is not kept: whoever completes the message is a part of it and must not be the last to
    // let go of it.
    auto done = [plan = std::make_shared<Plan>(std::move(call.plan)), end = end_](
                    int source, const Error* failure) mutable {
      std::exception_ptr raised;
      std::optional<ErrorCode> kind;
      if (failure) {
        raised = torch_error(*failure);
        kind = failure->code();
      } else {
        try {
          plan->copy_out();
        } catch (...) {
          raised = std::current_exception();
        }
      }
      plan.reset();  // the memory goes back before anybody hears that we are done
      std::exchange(end, nullptr)->part_ended(std::move(raised), kind, source);
    };
    if (call.sends)
      messages.send(call.peer, call.tag, call.signature, bytes, deadline, std::move(done));
    else
      messages.receive(call.peer, call.tag, call.signature, bytes, deadline, std::move(done));
  } catch (const Error& failure) {
    failed(torch_error(failure), failure.code(), failure.what());
  } catch (const std::exception& failure) {
    failed(std::current_exception(), ErrorCode::system, who + failure.what());
  }
}

}  // namespace vccl
