// Sends and receives on their way from a call to their end.
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
#include "csrc_pg/outcome.hpp"
#include "csrc_pg/plan.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// One send or receive.
struct MessageCall {
  bool sends = false;
  int peer = -1;  // a rank, or kAnySource
  int tag = 0;
  Signature signature;
  std::span<std::byte> bytes;
  Plan plan;  // the copies to and from `bytes`, and the memory; no calls
};

/// The end of what consists of several parts, messages among them: it ends with the last part, and with the
/// first error. Parts end on any thread. One that is dropped before, ends with an error.
class JointEnd {
 public:
  /// `parts`: at least one. `tells_streams`: an error becomes that of the streams that wait for the end.
  /// `afterwards`: called last of all, once.
  JointEnd(std::string name, int parts, std::shared_ptr<Outcome> outcome, bool tells_streams,
           std::function<void()> afterwards);
  ~JointEnd();
  JointEnd(const JointEnd&) = delete;
  JointEnd& operator=(const JointEnd&) = delete;

  const vdev::Event& event() const { return promise_.event(); }
  void started() noexcept { outcome_->started(); }
  /// Once for each part. `source`: the rank a message came from.
  void part_ended(std::exception_ptr error, std::optional<ErrorCode> code, int source = -1) noexcept;

 private:
  void finish() noexcept;

  const std::shared_ptr<Outcome> outcome_;
  const bool tells_streams_;
  const std::function<void()> afterwards_;
  std::mutex mutex_;  // of the next three
  int left_;
  std::exception_ptr error_;
  std::optional<ErrorCode> code_;
  vdev::Promise promise_;
};

/// Hands messages to the transport, in order, once their turn on the card has come; does not wait for them.
/// A task that is destroyed without having run (its stream had an earlier error, or was abandoned at exit)
/// fails the communicator, as the peers wait for the messages.
class MessageTask {
 public:
  /// `name`: of the operation, for errors. The messages are as many parts of `end`.
  MessageTask(std::shared_ptr<Communicator> communicator, std::string name, std::vector<MessageCall> calls,
              Milliseconds timeout, std::shared_ptr<JointEnd> end);
  ~MessageTask();
  MessageTask(const MessageTask&) = delete;
  MessageTask& operator=(const MessageTask&) = delete;

  /// The timeout counts from here.
  void run() noexcept;

 private:
  void post(MessageCall call, const Deadline& deadline);

  const std::shared_ptr<Communicator> communicator_;
  const std::string name_;
  std::vector<MessageCall> calls_;
  const Milliseconds timeout_;
  const std::shared_ptr<JointEnd> end_;
  bool ran_ = false;
};

}  // namespace vccl
