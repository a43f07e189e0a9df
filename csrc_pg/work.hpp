// The handle of one collective.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc_pg/communicators.hpp"
#include "csrc_pg/outcome.hpp"

namespace vccl {

/// What ProcessGroupVccl returns. On a card its meaning is ProcessGroupNCCL's:
///   wait()          the calling thread's current stream waits; the host does not. Raises the collective's
///   error if it
///                   is known by then; one that comes later is raised by the stream's next synchronisation.
///   wait(timeout)   the host waits. Raises DistBackendError when the time is up; the collective goes on.
///   getFuture()     complete at once; whoever waits for it makes their current stream wait.
/// For CPU tensors, barriers and sparse tensors, every wait is the host's, and the future completes with the
/// collective.
class WorkVccl final : public c10d::Work {
 public:
  /// What the profiler is told of the group.
  struct Group {
    std::string uid, description;
    int size = 0;
  };
  struct Description {
    int rank = -1;
    c10d::OpType type = c10d::OpType::UNKNOWN;
    std::string name;  // "all_reduce"
    std::vector<at::Tensor> inputs, outputs;
    std::uint64_t sequence = 0;
    bool blocks_host = false;
    std::shared_ptr<const Group> group = nullptr;  // under a profiler: its waits are recorded, too
  };

  /// `end`: the point at which the operation is over.
  /// Where the operation runs.
  struct Place {
    explicit Place(const DeviceCommunicator& where)
        : device(where.device()), communicator(where.communicator()), stream(where.stream()) {}
    /// The end is no point of a stream then.
    explicit Place(const MessageLane& lane) : device(lane.device()), communicator(lane.communicator()) {}

    c10::Device device;
    std::weak_ptr<Communicator> communicator;
    std::optional<std::weak_ptr<vdev::Stream>> stream;
  };

  WorkVccl(Description description, Place place, vdev::Event end, std::shared_ptr<Outcome> outcome);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Of a receive that has ended. Raises RuntimeError before, and for other operations.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// The current stream waits, on the current card for an operation on CPU tensors; the host does not. An
  /// error becomes that stream's.
  void blockCurrentStream() override;
  /// Aborts the communicator: an operation cannot be taken out from between the others.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Completes with the operation, on cards too, and never with an error: its value is a c10d::WorkResult.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Milliseconds the operation ran, without what its stream had to do before. Always measured: no need for
  /// enableCollectivesTiming(). Raises RuntimeError before its end.
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  bool on_card() const { return !place_.device.is_cpu(); }
  void record_wait() const;
  void wait_on_host(std::chrono::milliseconds timeout) const;
  void wait_on_stream() const;
  void raise_known_error() const;
  c10::intrusive_ptr<c10::ivalue::Future> make_card_future() const;
  c10::intrusive_ptr<c10::ivalue::Future> make_host_future() const;

  const Description description_;
  const Place place_;
  const vdev::Event end_;
  const std::shared_ptr<Outcome> outcome_;
  std::once_flag future_made_, result_future_made_;
  c10::intrusive_ptr<c10::ivalue::Future> future_, result_future_;
};

/// Shows the profiler an operation that nobody gets a handle of, as a WorkVccl shows its own: a range over
/// the launch, with the shapes of what goes in.
void profile_launch(int rank, c10d::OpType type, const char* name, const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& outputs);

}  // namespace vccl
