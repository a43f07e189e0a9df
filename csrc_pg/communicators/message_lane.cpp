#include "csrc_pg/communicators/message_lane.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/schedule.hpp"
#include "base/text.hpp"
#include "csrc_device/runtime/card.hpp"
#include "csrc_device/runtime/environment.hpp"

namespace vccl {
namespace {

constexpr int kAnyPeer = -1;  // the stream of all messages that keep no order with their peer

}  // namespace

void MessageLane::post(vdev::Task post) {
  if (device_.is_cpu()) return post->run();
  run_or_enqueue(stream_with(kAnyPeer), std::move(post));
}

void MessageLane::run_or_enqueue(const std::shared_ptr<vdev::Stream>& stream, vdev::Task post) {
  const auto point = vdev::current_stream(device_.index())->record();
  {
    const base::schedule::NoPoints kept;
    const std::lock_guard lock(order_);
    const bool nothing_before = point.reached() && !point.failure() && stream->idle();
    if (!nothing_before) {
      stream->wait(point);
      stream->enqueue(std::move(post));
      return;
    }
  }
  // The task runs without the lock, because a message that is complete at once runs callbacks. Two threads
  // that post at the same time have no order between them.
  post->run();
}

std::shared_ptr<vdev::Stream> MessageLane::stream_with(int peer) {
  const base::schedule::NoPoints kept;
  const std::lock_guard lock(order_);
  auto& stream = streams_[peer];
  if (!stream)
    stream = vdev::card(device_.index())
                 .new_stream(0, base::text("vccl p2p ", vdev::device_name(), ":", device_.index(),
                                           peer == kAnyPeer ? "" : base::text(" with ", peer)));
  return stream;
}

void MessageLane::post_in_order(const std::shared_ptr<vdev::Stream>& stream, vdev::Task post,
                                const vdev::Event& end) {
  run_or_enqueue(stream, std::move(post));
  stream->wait(end);
}

std::shared_ptr<SendBuffer> MessageLane::send_buffer(const std::shared_ptr<vdev::Stream>& stream, int peer) {
  const std::lock_guard lock(order_);
  auto& buffer = send_buffers_[{stream.get(), peer}];
  if (!send_memory_) send_memory_ = std::make_shared<SendMemory>(*communicator_);
  if (!buffer) buffer = std::make_shared<SendBuffer>(send_memory_, copies_under_way_);
  return buffer;
}

std::uint64_t MessageLane::wait_for_earlier(std::span<const Memory> memory) {
  if (device_.is_cpu()) return 0;
  const std::lock_guard lock(order_);
  std::erase_if(noted_, [](const UnderWay& earlier) { return earlier.end.reached(); });
  for (const auto& earlier : noted_) {
    const bool meets = std::ranges::any_of(memory, [&](const Memory& its) {
      return its.peer == earlier.memory.peer && (its.written || earlier.memory.written) &&
             its.begin < earlier.memory.end && earlier.memory.begin < its.end;
    });
    if (meets) vdev::current_stream(device_.index())->wait(earlier.end);
  }
  return count_of_notes_;
}

void MessageLane::note(std::span<const Memory> memory, const vdev::Event& end, std::uint64_t waited_for) {
  if (device_.is_cpu()) return;
  if (end.reached() && !end.failure()) return;
  vdev::card(device_.index()).also_wait_for(end);
  const std::lock_guard lock(order_);
  // Whoever meets an earlier message meets also the receive that has written over all of its memory, and that
  // receive has waited for it. So a host that runs ahead in a ping-pong looks at two messages, and not at
  // all.
  std::erase_if(noted_, [&](const UnderWay& earlier) {
    const bool is_covered = std::ranges::any_of(memory, [&](const Memory& its) {
      return its.peer == earlier.memory.peer && its.written && its.begin <= earlier.memory.begin &&
             earlier.memory.end <= its.end;
    });
    return is_covered && earlier.number < waited_for;
  });
  for (const auto& each : memory) noted_.push_back({each, end, count_of_notes_++});
}

std::shared_ptr<vdev::Stream> stream_behind(int card, const vdev::Event& point) {
  auto stream = vdev::card(card).new_stream(0, "vccl future");
  stream->wait(point);
  // Destroying a stream waits for its tasks, but not inside one of its own tasks.
  if (!stream->idle()) stream->enqueue(vdev::task_without_memory([stream] {}));
  return stream;
}

}  // namespace vccl
