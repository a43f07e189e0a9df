#include "csrc_pg/communicators/device_communicator.hpp"

#include "csrc_device/runtime/capture.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/queue.hpp"

namespace vccl {
namespace {

// As many collectives may wait on a stream as kernels. Each is a task with a wait before it and a point
// behind it.
constexpr std::uint64_t kMostItems = 3 * vdev::Queue::kMostTasks;

}  // namespace

/// Gives the replays of graphs their place among the communicator's tasks. Graphs keep this object, and not
/// the communicator: a group that was destroyed must leave its peers.
class DeviceCommunicator::InGraphs final : public vdev::ReplayUser {
 public:
  explicit InGraphs(std::weak_ptr<DeviceCommunicator> communicator)
      : communicator_(std::move(communicator)) {}

  std::unique_ptr<vdev::ReplayTurn> begin(vdev::Stream& stream) override {
    auto held = communicator_.lock();
    return held ? std::make_unique<Turn>(std::move(held), stream) : nullptr;
  }

 private:
  class Turn final : public vdev::ReplayTurn {
   public:
    Turn(std::shared_ptr<DeviceCommunicator> communicator, vdev::Stream& stream)
        : communicator_(std::move(communicator)), stream_(stream), lock_(communicator_->order_) {
      communicator_->follow(stream);
    }
    void enqueued(const vdev::Event& end) noexcept override {
      communicator_->last_ = end;
      communicator_->last_stream_ = &stream_;
    }

   private:
    const std::shared_ptr<DeviceCommunicator> communicator_;
    vdev::Stream& stream_;
    const std::lock_guard<std::mutex> lock_;
  };

  const std::weak_ptr<DeviceCommunicator> communicator_;
};

/// Puts what `stream` gets next behind the communicator's last task. The caller holds the lock.
void DeviceCommunicator::follow(vdev::Stream& stream) {
  if (last_stream_ == &stream) return;
  stream.wait(last_);
  stream.queue()->add_interruptible(interruptible_);
}

/// The caller holds the lock.
void DeviceCommunicator::take_part(const vdev::Stream& stream) {
  if (!in_graphs_) in_graphs_ = std::make_shared<InGraphs>(weak_from_this());
  if (const auto capture = stream.queue()->capture()) capture->add_user(in_graphs_);
}

// Inside the graph no collective waits for the one before: a replay runs them in the order of these calls.
vdev::Event DeviceCommunicator::capture(vdev::Task task, const std::vector<vdev::Event>& after) {
  std::lock_guard lock(order_);
  const auto current = vdev::current_stream(device_.index());
  if (current != stream_) stream_->wait(current->record());
  for (const auto& event : after) stream_->wait(event);
  take_part(*stream_);
  stream_->enqueue(std::move(task));
  return stream_->record();
}

void DeviceCommunicator::capture_on_current_stream(vdev::Task task) {
  std::lock_guard lock(order_);
  const auto current = vdev::current_stream(device_.index());
  take_part(*current);
  current->enqueue(std::move(task));
}

vdev::Event DeviceCommunicator::enqueue(const std::shared_ptr<vdev::Stream>& stream, vdev::Task task,
                                        vdev::Start start) {
  follow(*stream);
  stream->enqueue(std::move(task), start);
  last_ = stream->record();
  last_stream_ = stream.get();
  return last_;
}

// Every collective with async_op comes here, such as the buckets of DDP, and every collective on the CPU. It
// goes on the communicator's own stream, which make_stream() made with the communicator, behind what the
// caller's current stream holds now; Work.wait() later makes the current stream wait for it. Synchronous
// collectives on a card go to launch_on_current_stream().
vdev::Event DeviceCommunicator::launch(vdev::Task task, vdev::Start start,
                                       const std::vector<vdev::Event>& after) {
  vdev::Event end;
  {
    std::lock_guard lock(order_);
    if (!device_.is_cpu()) {
      const auto current = vdev::current_stream(device_.index());
      if (current != stream_) stream_->wait(current->record());
    }
    for (const auto& event : after) stream_->wait(event);
    end = enqueue(stream_, std::move(task), start);
  }
  if (!device_.is_cpu()) stream_->queue()->bound_length(kMostItems);
  return end;
}

vdev::Event DeviceCommunicator::launch_on_current_stream(vdev::Task task) {
  const auto current = vdev::current_stream(device_.index());
  vdev::Event end;
  {
    std::lock_guard lock(order_);
    end = enqueue(current, std::move(task), vdev::Start::kByWaiter);
  }
  current->queue()->bound_length(kMostItems);
  return end;
}

vdev::Event DeviceCommunicator::last() const {
  std::lock_guard lock(order_);
  return last_;
}

}  // namespace vccl
