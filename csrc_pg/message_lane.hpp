// The order of a device's messages, beside its collectives.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include <c10/core/Device.h>

#include "csrc_device/runtime/stream.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// How many messages are under way. Thread-safe.
class MessageCount {
 public:
  void add(int change);
  /// Until there are none. False when `deadline` has passed.
  bool wait_for_none(const Deadline& deadline);

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int under_way_ = 0;
};

/// Messages of every device go over one communicator, which is made with the group: two ranks that speak to
/// each other need no third, as they would if the device's own communicator came with their first message.
class MessageLane {
 public:
  MessageLane(c10::Device device, std::shared_ptr<Communicator> communicator)
      : device_(device), communicator_(std::move(communicator)) {}

  c10::Device device() const { return device_; }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }

  /// Runs `post`, which begins messages and does not block, once the card has come to this point of the
  /// caller's current stream: within the call where nothing is queued before it, as always on the CPU. In the
  /// order of these calls, and beside the collectives: none of them waits for a message, nor a message for
  /// one of them.
  void post(vdev::Task post);
  /// Whoever begins messages adds their number, and takes it off when they have ended.
  const std::shared_ptr<MessageCount>& under_way() const { return under_way_; }

 private:
  const c10::Device device_;
  const std::shared_ptr<Communicator> communicator_;
  std::mutex order_;
  std::shared_ptr<vdev::Stream> stream_;  // made at first use, under order_
  const std::shared_ptr<MessageCount> under_way_ = std::make_shared<MessageCount>();
};

/// A stream of the card that holds nothing but a wait for `point`, and that is there until then whether or
/// not anybody keeps it.
std::shared_ptr<vdev::Stream> stream_behind(int card, const vdev::Event& point);

}  // namespace vccl
