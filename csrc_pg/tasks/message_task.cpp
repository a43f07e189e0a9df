#include "csrc_pg/tasks/message_task.hpp"

#include <cstddef>
#include <cstring>
#include <utility>

#include "base/text.hpp"
#include "csrc_device/runtime/spoiled_memory.hpp"
#include "csrc_pg/operations/errors.hpp"
#include "csrc_pg/operations/faults_of_call.hpp"
#include "csrc_pg/operations/program_checks.hpp"
#include "csrc_pg/tasks/collective_task.hpp"

namespace vccl {

JointEnd::JointEnd(std::string name, int parts, std::shared_ptr<Outcome> outcome,
                   std::shared_ptr<vdev::FailureOwner> failures, std::function<void()> afterwards)
    : outcome_(std::move(outcome)),
      failures_(std::move(failures)),
      afterwards_(std::move(afterwards)),
      left_(parts),
      promise_(std::move(name), vdev::Promise::Fulfiller::is_watched) {}

JointEnd::~JointEnd() {
  // This happens only if a part was dropped without calling part_ended().
  if (left_ > 0) {
    const Error error(ErrorCode::aborted, "the operation was given up before its end");
    if (!error_) error_ = torch_error(error), code_ = error.code();
    finish();
  }
}

void JointEnd::spoil_outputs(const CollectivePlan& plan, const std::exception_ptr& error) const {
  if (failures_) plan.spoil_outputs(failures_->fail(error));
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
  // The last part has ended, so no other thread uses the members. The outcome is finished first, so that a
  // thread that sees the event reached also sees the outcome.
  outcome_->finish(error_, code_);
  promise_.fulfil(error_ && failures_ ? failures_->fail(error_) : nullptr);
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
  if (!ended_) did_not_run("its call has failed");
}

void MessageTask::did_not_run(const std::string& why) {
  ended_ = true;
  const auto error = fail_unrun(*communicator_, base::text("did not begin its ", name_), why);
  const auto raised = torch_error(error);
  for (const auto& call : calls_) end_->spoil_outputs(call.plan, raised);
  const auto parts = calls_.size();
  calls_.clear();
  for (std::size_t i = 0; i < parts; ++i) end_->part_ended(raised, error.code());
}

void MessageTask::give_up(const vdev::FailurePtr& failure) {
  did_not_run(why_given_up(failure));
}

void MessageTask::run() noexcept {
  ended_ = true;
  end_->started();
  const auto deadline = Deadline::in(timeout_);
  for (auto& call : std::exchange(calls_, {})) post(std::move(call), deadline);
}

/// The end of a send that is complete once its copy fits into the buffer, or was received, unless it fails
/// before. What becomes of the copy later does not concern the send: its receiver learns of a failure, and
/// this rank does in its next operation.
class MessageTask::EndOfCopy : public Messages::Waiter, public std::enable_shared_from_this<EndOfCopy> {
 public:
  EndOfCopy(std::shared_ptr<JointEnd> end, std::shared_ptr<SendBuffer> buffer, std::size_t bytes)
      : end_(std::move(end)), buffer_(std::move(buffer)), bytes_(bytes) {
    buffer_->add(bytes_);
    buffer_->under_way().add(1);
  }

  /// Call this once when the message is over. The send ends with it only behind prepared().
  void message_ended(const Error* failure) {
    if (failure) {
      buffer_->failed();
      over(torch_error(*failure), failure->code());
    } else {
      over(nullptr, std::nullopt);
      buffer_->received(bytes_);
    }
    forget();
  }
  /// Call this when the send could not be made.
  void over(std::exception_ptr error, std::optional<ErrorCode> code) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (ended_ || over_) return;
      over_ = true;
      error_ = std::move(error);
      code_ = code;
      if (!prepared_) return;
    }
    end();
  }
  /// Call this once when nothing of the program's is used any more.
  void prepared() {
    bool over = false;
    {
      const std::lock_guard lock(mutex_);
      prepared_ = true;
      over = over_;
    }
    if (over) return end();
    buffer_->when_it_fits([self = shared_from_this()] { self->end(); });
  }
  // Release and acquire: whoever sees that nobody waits any more also sees what came before the end.
  bool waits() const noexcept override { return waits_.load(std::memory_order_acquire); }
  void receiver_is_gone() override { forget(); }

 private:
  void end() noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(ended_, true)) return;
    }
    waits_.store(false, std::memory_order_release);
    end_->part_ended(error_, code_);
  }
  /// Lets nobody who destroys the group wait for this copy any more.
  void forget() {
    if (!forgotten_.exchange(true)) buffer_->under_way().add(-1);
  }

  const std::shared_ptr<JointEnd> end_;
  const std::shared_ptr<SendBuffer> buffer_;
  const std::size_t bytes_;
  std::atomic<bool> waits_{true}, forgotten_{false};
  std::mutex mutex_;  // guards the rest, of which error_ and code_ stay as they are once ended_ is set
  bool prepared_ = false, over_ = false, ended_ = false;
  std::exception_ptr error_;
  std::optional<ErrorCode> code_;
};

/// Hands a copy of a message to the transport.
std::shared_ptr<MessageTask::EndOfCopy> MessageTask::send_copy(const MessageCall& call,
                                                               const Deadline& deadline) {
  const auto bytes = call.bytes.size();
  auto copy = call.buffer->memory().take(bytes);
  std::memcpy(copy.get(), call.bytes.data(), bytes);
  const std::span<const std::byte> copied(copy.get(), bytes);
  auto& messages = communicator_->messages();
  const auto end = std::make_shared<EndOfCopy>(end_, call.buffer, bytes);
  auto done = [end, copy = std::move(copy)](int, const Error* failure) mutable {
    copy.reset();
    end->message_ended(failure);
  };
  messages.send(call.peer, call.tag, call.signature, copied, deadline, std::move(done), end);
  return end;
}

void MessageTask::post(MessageCall call, const Deadline& deadline) {
  const std::string who =
      base::text(communicator_->own_text_in_group(), " could not begin its ", name_, ": ");
  // `failed` handles a send or receive that could not begin, and a copy that ran out of memory. The peer must
  // not wait for such a message. The transport passes other failures of the message to `done`.
  auto plan = std::make_shared<CollectivePlan>(std::move(call.plan));
  std::shared_ptr<EndOfCopy> copied;
  const auto failed = [&](std::exception_ptr error, ErrorCode code, const std::string& what) {
    communicator_->fail(code, what);
    if (plan) end_->spoil_outputs(*plan, error);
    plan.reset();
    if (!copied) return end_->part_ended(std::move(error), code);
    copied->over(std::move(error), code);
    copied->prepared();
  };
  try {
    auto& messages = communicator_->messages();
    const auto strikes = plan->faults();
    const faults::Running running(strikes.get());
    if (strikes) strikes->strike(faults::Moment::before);
    if (vdev::SpoiledMemory::any()) check_inputs(*plan, *communicator_, name_);
    plan->copy_in();
    const auto dtype = static_cast<Dtype>(call.signature.dtype);
    const auto bytes = call.bytes;
    faults::Damage damage;
    if (call.sends) damage = damage_message(strikes.get(), faults::Moment::before, bytes, dtype);
    if (call.sends && plan->checks_nan())
      check_finite_message(*communicator_, call.signature, call.bytes.data(), call.peer);
    const auto hash = [bytes, signature = call.signature] {
      return hash_of_message(signature.dtype, bytes.data(), signature.count);
    };
    if (const auto& entry = plan->hashed(); entry && call.sends)
      entry.recorder->hashed(entry.number, hash(), 0);
    if (call.activity) call.activity->posted();
    const bool meets_receive = call.sends && messages.meets_receive(call.peer, call.tag);
    if (call.buffer && !meets_receive) {
      copied = send_copy(call, deadline);
      damage.undo();
      if (strikes) {
        faults::moved();
        strikes->strike(faults::Moment::after);
      }
      if (call.activity) call.activity->ended();
      plan.reset();  // frees the memory before any waiter sees that the send has ended
      copied->prepared();
      return;
    }
    // The callback does not keep the communicator: a part of the communicator calls it, and must not destroy
    // the communicator.
    auto done = [plan = std::move(plan), end = end_, activity = std::move(call.activity), strikes,
                 damage = std::move(damage), bytes, dtype, hash,
                 sends = call.sends](int source, const Error* failure) mutable {
      damage.undo();  // the program's tensor is what it was, whatever was sent
      if (strikes && !failure) {
        damage_message(strikes.get(), faults::Moment::after, bytes, dtype);
        strikes->strike(faults::Moment::after);
      }
      std::exception_ptr raised;
      std::optional<ErrorCode> kind;
      if (failure) {
        raised = torch_error(*failure);
        kind = failure->code();
      } else {
        try {
          if (const auto& entry = plan->hashed(); entry && !sends)
            entry.recorder->hashed(entry.number, 0, hash());
          plan->copy_out();
          if (vdev::SpoiledMemory::any()) plan->renew_outputs();
        } catch (...) {
          raised = std::current_exception();
        }
      }
      if (raised) end->spoil_outputs(*plan, raised);
      if (activity) activity->ended();
      plan.reset();  // frees the memory before any waiter sees that the message has ended
      std::exchange(end, nullptr)->part_ended(std::move(raised), kind, source);
    };
    if (call.sends)
      messages.send(call.peer, call.tag, call.signature, bytes, deadline, std::move(done));
    else
      messages.receive(call.peer, call.tag, call.signature, bytes, deadline, std::move(done));
    if (strikes) faults::moved();
  } catch (const Error& failure) {
    failed(torch_error(failure), failure.code(), failure.what());
  } catch (const std::exception& failure) {
    failed(std::current_exception(), ErrorCode::system, who + failure.what());
  }
}

}  // namespace vccl
