// The order of a device's messages, which is independent of its collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "csrc_device/runtime/stream.hpp"
#include "csrc_pg/communicators/abort_when_interrupted.hpp"
#include "csrc_pg/communicators/message_activity.hpp"
#include "csrc_pg/communicators/message_count.hpp"
#include "csrc_pg/communicators/send_buffer.hpp"
#include "transport/communicator.hpp"

namespace vccl {

/// Begins the messages of one device. Messages of every device go over one communicator, which is made with
/// the group. So two ranks can exchange messages without a third rank. If the device's own communicator were
/// made at the first message, all ranks would have to take part.
class MessageLane {
 public:
  MessageLane(c10::Device device, std::shared_ptr<Communicator> communicator,
              std::shared_ptr<GroupToAbort> group)
      : device_(device),
        communicator_(std::move(communicator)),
        tracks_(device.is_cpu() ? -1 : device.index(), *communicator_),
        interruptible_(std::make_shared<AbortsWhenInterrupted>(std::move(group), communicator_,
                                                               AbortsWhenInterrupted::When::kAlways)) {}

  c10::Device device() const { return device_; }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  /// Returns where the profiler shows the messages.
  MessageTracks& tracks() { return tracks_; }
  /// Returns the object that aborts the group; the end of every operation with messages names it
  /// (JointEnd::add_interruptible).
  const std::shared_ptr<AbortsWhenInterrupted>& interruptible() const { return interruptible_; }

  /// Runs `post`, which begins messages and does not block, once the card has come to this point of the
  /// caller's current stream. If nothing is queued before that point, as always on the CPU, `post` runs
  /// within the call. The functions run in the order of these calls. They do not wait for collectives, and
  /// collectives do not wait for messages.
  void post(vdev::Task post);
  /// Does what post() does, but in the order of `stream`, in which a message begins when the one before has
  /// ended, whichever way it goes. So it is with NCCL, where each communicator has one stream. `end` is the
  /// end of what `post` begins.
  void post_in_order(const std::shared_ptr<vdev::Stream>& stream, vdev::Task post, const vdev::Event& end);
  /// Returns the buffer for sends to `peer` that are posted in the order of `stream`.
  std::shared_ptr<SendBuffer> send_buffer(const std::shared_ptr<vdev::Stream>& stream, int peer);
  /// Returns the stream for the messages with `peer`, of which NCCL's communicator of the two ranks has one.
  std::shared_ptr<vdev::Stream> stream_with(int peer);
  /// Describes the memory of a message with `peer`. A receive writes to it.
  struct Memory {
    int peer;
    const std::byte* begin;
    const std::byte* end;
    bool written;
  };
  /// Lets the caller's current stream wait for earlier messages with the same peer that use the same memory,
  /// if one of the two writes to it. With NCCL all messages with one peer are in the order of one stream.
  /// Does nothing for the CPU, where messages have no order. Returns what note() asks for.
  std::uint64_t wait_for_earlier(std::span<const Memory> memory);
  /// Call this when messages have begun, with their end and what wait_for_earlier() returned for them. A
  /// synchronisation of the card waits for the end.
  void note(std::span<const Memory> memory, const vdev::Event& end, std::uint64_t waited_for);
  /// Returns the count of messages under way. A caller that begins messages adds to the count, and subtracts
  /// when the messages have ended.
  const std::shared_ptr<MessageCount>& under_way() const { return under_way_; }
  /// Returns the count of copies of sends that were not received yet (SendBuffer).
  const std::shared_ptr<MessageCount>& copies_under_way() const { return copies_under_way_; }

 private:
  /// Runs `post` within the call if nothing is queued before it on the current stream and on `stream`, and
  /// puts it on `stream` otherwise.
  void run_or_enqueue(const std::shared_ptr<vdev::Stream>& stream, vdev::Task post);

  const c10::Device device_;
  const std::shared_ptr<Communicator> communicator_;
  MessageTracks tracks_;
  const std::shared_ptr<AbortsWhenInterrupted> interruptible_;
  std::mutex order_;
  struct UnderWay {
    Memory memory;
    vdev::Event end;
    std::uint64_t number;
  };
  std::vector<UnderWay> noted_;       // under order_
  std::uint64_t count_of_notes_ = 0;  // under order_
  // By stream, which is compared and never dereferenced, and peer; made at first use, under order_.
  std::map<std::pair<const vdev::Stream*, int>, std::shared_ptr<SendBuffer>> send_buffers_;
  std::shared_ptr<SendMemory> send_memory_;               // made at first use, under order_
  std::map<int, std::shared_ptr<vdev::Stream>> streams_;  // by peer, made at first use, under order_
  const std::shared_ptr<MessageCount> under_way_ = std::make_shared<MessageCount>();
  const std::shared_ptr<MessageCount> copies_under_way_ = std::make_shared<MessageCount>();
};

/// Returns a stream of the card that holds only a wait for `point`. The stream exists until the point is
/// reached, even if nobody keeps the pointer.
std::shared_ptr<vdev::Stream> stream_behind(int card, const vdev::Event& point);

}  // namespace vccl
