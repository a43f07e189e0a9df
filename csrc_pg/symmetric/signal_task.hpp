// The tasks by which a stream gives signals to other ranks and waits for theirs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_pg/symmetric/connection.hpp"

namespace vccl::symmetric {

/// Is a task that may wait for a peer. A failure stops what comes behind it on its stream, as the memory that
/// it should have waited for must not be read. If the task itself is given up, the peers are told.
class SignalTask final : public vdev::TaskBody {
 public:
  /// `name` is for messages: "barrier (channel 0)".
  using Body = std::function<void(Connection&, const Deadline&)>;
  SignalTask(std::shared_ptr<Connection> connection, std::string name, Milliseconds timeout, Body body);

  void run() override;
  void give_up(const vdev::FailurePtr& failure) override;
  bool knows_its_memory() const noexcept override { return false; }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::string name_;
  const Milliseconds timeout_;
  const Body body_;
};

/// Puts a task on the calling thread's current stream of `card`. `start` says who runs it.
void launch_signals(int card, std::shared_ptr<Connection> connection, std::string name, Milliseconds timeout,
                    vdev::Start start, SignalTask::Body body);

/// Blocks until the tasks of launch_signals() have run, or for at most `patience`. Call this when the
/// interpreter exits: a peer may wait for the last signals of a program that ends.
void finish_signals(Milliseconds patience);

}  // namespace vccl::symmetric
