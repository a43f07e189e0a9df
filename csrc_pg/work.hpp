// The handle of one collective.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
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
/// For CPU tensors, and for barriers, every wait is the host's, and the future completes with the collective.
class WorkVccl final : public c10d::Work {
 public:
  struct Description {
    int rank = -1;
    c10d::OpType type = c10d::OpType::UNKNOWN;
    std::string name;  // "all_reduce"
    std::vector<at::Tensor> inputs, outputs;
    std::uint64_t sequence = 0;
    bool blocks_host = false;
  };

  WorkVccl(Description description, const std::string& title,
           const std::shared_ptr<DeviceCommunicator>& where, vdev::Event end,
           std::shared_ptr<Outcome> outcome);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  /// Aborts the communicator: an operation cannot be taken out from between the others.
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Milliseconds the collective ran; 0 before its end.
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  bool on_card() const { return !device_.is_cpu(); }
  void wait_on_host(std::chrono::milliseconds timeout) const;
  void wait_on_stream() const;
  void raise_known_error() const;
  c10::intrusive_ptr<c10::ivalue::Future> make_card_future() const;
  c10::intrusive_ptr<c10::ivalue::Future> make_cpu_future() const;

  const Description description_;
  const c10::Device device_;
  const std::weak_ptr<Communicator> communicator_;
  const std::weak_ptr<vdev::Stream> stream_;
  const vdev::Event end_;
  const std::shared_ptr<Outcome> outcome_;
  std::once_flag future_made_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace vccl
