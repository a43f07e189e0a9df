// The communicator of one device of a group, with the stream on which its collectives run.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_pg/communicators/abort_when_interrupted.hpp"
#include "transport/claim.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Holds a communicator and keeps the order of its collectives.
class DeviceCommunicator : public std::enable_shared_from_this<DeviceCommunicator> {
 public:
  DeviceCommunicator(c10::Device device, std::shared_ptr<Communicator> communicator,
                     std::shared_ptr<vdev::Stream> stream, std::shared_ptr<GroupToAbort> group,
                     std::unique_ptr<Claim> claim)
      : device_(device),
        claim_(std::move(claim)),
        communicator_(std::move(communicator)),
        stream_(std::move(stream)),
        interruptible_(std::make_shared<AbortsWhenInterrupted>(std::move(group), communicator_,
                                                               AbortsWhenInterrupted::When::kBusyOrFailed)) {}

  c10::Device device() const { return device_; }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const std::shared_ptr<vdev::Stream>& stream() const { return stream_; }

  /// Enqueues `task` on the communicator's stream. The task runs after `after` and after what the caller's
  /// current stream of the device holds. Returns the end of the task. Tasks run one at a time, in the order
  /// of these calls. On a card, blocks while more than 1,024 collectives are queued, as launches on GPUs do.
  /// Thread-safe.
  vdev::Event launch(vdev::Task task, vdev::Start start, const std::vector<vdev::Event>& after = {});
  /// Enqueues `task` on the caller's current stream of the card, as a deferred task. As a rule, the caller's
  /// next operator waits for the task and runs it, which saves the worker's wake-up. Blocks like launch().
  /// Call this only for a card.
  vdev::Event launch_on_current_stream(vdev::Task task);

  /// Do what launch() and launch_on_current_stream() do while the caller's current stream is captured: add
  /// the task to the graph. From then on, replays of the graph have their place among the communicator's
  /// tasks.
  vdev::Event capture(vdev::Task task, const std::vector<vdev::Event>& after = {});
  void capture_on_current_stream(vdev::Task task);

  /// Returns the end of the collective that was launched last.
  vdev::Event last() const;

 private:
  class InGraphs;
  void follow(vdev::Stream& stream);
  void take_part(const vdev::Stream& stream);
  vdev::Event enqueue(const std::shared_ptr<vdev::Stream>& stream, vdev::Task task, vdev::Start start);

  const c10::Device device_;
  const std::unique_ptr<Claim> claim_;  // shows that this process is still the rank; null for cards
  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<vdev::Stream> stream_;
  const std::shared_ptr<AbortsWhenInterrupted> interruptible_;
  // A communicator runs one operation at a time, and pairs the ranks' operations by their order. Collectives
  // of one communicator may be launched on different streams, so each waits for the one before on whichever
  // stream that is.
  mutable std::mutex order_;
  vdev::Event last_;
  const void* last_stream_ = nullptr;  // compared, never dereferenced
  std::shared_ptr<InGraphs> in_graphs_;
};

}  // namespace vccl
