// The handle of one operation.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc_device/runtime/failure.hpp"
#include "csrc_device/torch/races.hpp"
#include "csrc_device/torch/torch_version.hpp"
#include "csrc_pg/communicators/communicators.hpp"
#include "csrc_pg/operations/held_memory.hpp"
#include "csrc_pg/operations/outcome.hpp"
#include "csrc_pg/operations/program_checks.hpp"

namespace vccl {

/// A WorkVccl is the handle that ProcessGroupVccl returns for an asynchronous operation and for messages. On
/// a card, its members do what ProcessGroupNCCL's do:
///
/// - wait() makes the calling thread's current stream wait, and does not block the host. It raises the
/// operation's error, every time, if the error is known by then. An error that comes later is raised by every
/// synchronisation with the stream and by every operator that reads the outputs.
///
/// - wait(timeout) blocks the host. It raises DistBackendError when the time is up; the operation goes on,
/// unless WaitRules::aborts.
///
/// - getFuture() returns a future that is already complete. A thread that waits for the future makes its
/// current stream wait.
///
/// For CPU tensors and barriers, every wait but blockCurrentStream() blocks the host, and the future
/// completes with the operation. On a card, wait() blocks the host and the future completes with the
/// operation if Description::blocks_host is set, as it is for sparse tensors and for receives from any rank.
class WorkVccl final : public vdev::torch_version::Work {
 public:
  /// Says what the profiler shows of the group.
  struct Group {
    std::string uid, description;
    int size = 0;
  };
  struct WaitRules {
    std::chrono::milliseconds timeout{};             // of the operation
    std::shared_ptr<GroupToAbort> aborts = nullptr;  // what wait(timeout) aborts when the time is up, or null
  };
  struct Description {
    int rank = -1;
    c10d::OpType type = c10d::OpType::UNKNOWN;
    std::string name;  // "all_reduce"
    std::vector<at::Tensor> inputs, outputs;
    std::uint64_t sequence = 0;
    bool blocks_host = false;
    std::shared_ptr<const Group> group = nullptr;  // set under a profiler, which then records the waits, too
    std::shared_ptr<HeldMemory> memory = nullptr;  // on a card: of the tensors, until somebody waits
    vdev::races::Point watched = nullptr;          // the end, as the race detector knows it
    WaitRules waits = {};
    bool stacks_outputs = false;  // the result is one tensor, as that of NCCL's all_gather into a list
  };

  /// Says where the operation runs.
  struct Place {
    Place(const DeviceCommunicator& where, std::shared_ptr<vdev::FailureOwner> group_failures)
        : device(where.device()),
          communicator(where.communicator()),
          stream(where.stream()),
          failures(std::move(group_failures)) {}
    /// Describes a message, whose end is not a point of a stream.
    Place(const MessageLane& lane, std::shared_ptr<vdev::FailureOwner> group_failures)
        : device(lane.device()), communicator(lane.communicator()), failures(std::move(group_failures)) {}

    c10::Device device;
    std::weak_ptr<Communicator> communicator;
    std::optional<std::weak_ptr<vdev::Stream>> stream;
    std::shared_ptr<vdev::FailureOwner> failures;
  };

  /// `end` is the point at which the operation is over.
  WorkVccl(Description description, Place place, vdev::Event end, std::shared_ptr<Outcome> outcome);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Returns the rank from which a receive got its message. Raises RuntimeError before the receive has ended,
  /// and for other operations.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Makes the current stream wait, and does not block the host. For an operation on CPU tensors, this is the
  /// current stream of the current card, and behind an error of the operation it runs nothing.
  void blockCurrentStream() override;
  /// Aborts the communicator, because a single operation cannot be removed from the communicator's order.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Returns a future that completes with the operation, on cards too, and never with an error. Its value is
  /// a c10d::WorkResult.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Returns for how many milliseconds the operation ran, without the time of what its stream did before. The
  /// time is always measured, without enableCollectivesTiming(). Raises RuntimeError before the end of the
  /// operation.
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;
  std::chrono::milliseconds timeout() const { return description_.waits.timeout; }
  /// Returns the number by which hooks know the operation (SuccessHooks).
  std::uint64_t getCompletionKey() const override { return outcome_->key(); }

 private:
  void note_use() const {
    if (leak_) leak_->note_use();
  }
  bool on_card() const { return !place_.device.is_cpu(); }
  void record_wait() const;
  void leave_registry();
  void wait_on_host(std::chrono::milliseconds timeout) const;
  void wait_on_stream() const;
  void let_go_of_memory() const;
  void raise_known_error() const;
  std::vector<at::Tensor> results() const;
  c10::intrusive_ptr<c10::ivalue::Future> make_card_future() const;
  c10::intrusive_ptr<c10::ivalue::Future> make_host_future() const;

  const Description description_;
  const Place place_;
  const vdev::Event end_;
  const std::shared_ptr<Outcome> outcome_;
  const std::unique_ptr<LeakCheck> leak_;
  std::once_flag future_made_, result_future_made_;
  c10::intrusive_ptr<c10::ivalue::Future> future_, result_future_;
};

/// Shows the profiler an operation that returns no handle. As for a WorkVccl, the profiler gets a range over
/// the launch, with the shapes of the inputs.
void profile_launch(int rank, c10d::OpType type, const char* name, const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& outputs);

}  // namespace vccl
