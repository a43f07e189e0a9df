// Sends and receives, from the call to their end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc_device/runtime/promise.hpp"
#include "csrc_device/runtime/task.hpp"
#include "csrc_pg/communicators/message_activity.hpp"
#include "csrc_pg/communicators/send_buffer.hpp"
#include "csrc_pg/operations/outcome.hpp"
#include "csrc_pg/tasks/collective_plan.hpp"
#include "transport/communicator.hpp"
#include "transport/messages.hpp"

namespace vccl {

/// Describes one send or receive.
struct MessageCall {
  bool sends = false;
  int peer = -1;  // a rank, or kAnySource
  MessageTag tag;
  Signature signature;
  std::span<std::byte> bytes;
  CollectivePlan plan;  // the copies to and from `bytes`, and the memory; it has no calls
  std::shared_ptr<MessageActivity> activity = nullptr;  // null if none is recorded
  // A send is copied, and complete once the copy fits there. Null if it is complete when it was received.
  std::shared_ptr<SendBuffer> buffer = nullptr;
};

/// Represents the end of an operation of several parts, such as messages. The end is reached when the last
/// part has ended, and carries the first error. Parts may end on any thread. If a JointEnd is destroyed
/// before all parts have ended, its end is reached with an error.
class JointEnd {
 public:
  /// `parts` is at least 1. `failures` is the group's owner of failures for an operation on a card: an error
  /// becomes a failure of the streams that wait for the end. It is null for the CPU. `afterwards` is called
  /// once, after everything else.
  JointEnd(std::string name, int parts, std::shared_ptr<Outcome> outcome,
           std::shared_ptr<vdev::FailureOwner> failures, std::function<void()> afterwards);
  ~JointEnd();
  JointEnd(const JointEnd&) = delete;
  JointEnd& operator=(const JointEnd&) = delete;

  const vdev::Event& event() const { return promise_.event(); }
  void started() noexcept { outcome_->started(); }
  /// Names the object that makes the end come soon when a thread that waits for it is interrupted.
  void add_interruptible(const std::shared_ptr<vdev::Interruptible>& user) {
    promise_.add_interruptible(user);
  }
  /// Spoils the outputs of a part that has failed, if they are on a card. Call this before part_ended(),
  /// while the plan holds its memory.
  void spoil_outputs(const CollectivePlan& plan, const std::exception_ptr& error) const;
  /// Call this once for each part. `source` is the rank from which a message came.
  void part_ended(std::exception_ptr error, std::optional<ErrorCode> code, int source = -1) noexcept;

 private:
  void finish() noexcept;

  const std::shared_ptr<Outcome> outcome_;
  const std::shared_ptr<vdev::FailureOwner> failures_;
  const std::function<void()> afterwards_;
  std::mutex mutex_;  // guards the next three members
  int left_;
  std::exception_ptr error_;
  std::optional<ErrorCode> code_;
  vdev::Promise promise_;
};

/// Hands messages to the transport, in order, once their turn on the card has come, and does not wait for
/// them. A task may be given up, or destroyed without having run. Such a task fails the communicator, because
/// the peers wait for the messages.
class MessageTask final : public vdev::TaskBody {
 public:
  /// `name` is the operation's, for errors. Each message is one part of `end`. The part of a send with a
  /// `buffer` is its copy, unless its receive has begun.
  MessageTask(std::shared_ptr<Communicator> communicator, std::string name, std::vector<MessageCall> calls,
              Milliseconds timeout, std::shared_ptr<JointEnd> end);
  ~MessageTask() override;
  MessageTask(const MessageTask&) = delete;
  MessageTask& operator=(const MessageTask&) = delete;

  /// Begins the messages. Their timeout begins here.
  void run() noexcept override;
  void give_up(const vdev::FailurePtr& failure) override;

 private:
  void did_not_run(const std::string& why);
  void post(MessageCall call, const Deadline& deadline);
  class EndOfCopy;
  std::shared_ptr<EndOfCopy> send_copy(const MessageCall& call, const Deadline& deadline);

  const std::shared_ptr<Communicator> communicator_;
  const std::string name_;
  std::vector<MessageCall> calls_;
  const Milliseconds timeout_;
  const std::shared_ptr<JointEnd> end_;
  bool ended_ = false;
};

}  // namespace vccl
