// Sends and receives on the profiler's lanes. They are no tasks: a task posts a message and goes on, and the
// transport calls back when the message has ended.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "csrc_device/runtime/activity.hpp"
#include "transport/communicator.hpp"
#include "transport/rank_names.hpp"

namespace vccl {

/// The lane of what goes to one rank, or comes from one. Thread-safe.
class MessageTrack {
 public:
  explicit MessageTrack(vdev::Lane lane) : lane_(std::make_shared<const vdev::Lane>(std::move(lane))) {}

  const std::shared_ptr<const vdev::Lane>& lane() const { return lane_; }
  /// Records a message that has ended now. Messages overlap, but what one lane shows must not. So a message
  /// that was posted before the one ahead of it had ended is shown from that end.
  void record(std::unique_ptr<const vdev::Launch> launch, std::int64_t posted);

 private:
  const std::shared_ptr<const vdev::Lane> lane_;
  std::mutex mutex_;
  std::int64_t last_end_ = 0;
};

/// One message, from its post to its end. Made where the message is launched, and only while activity is
/// recorded.
class MessageActivity {
 public:
  MessageActivity(std::shared_ptr<MessageTrack> track, std::unique_ptr<const vdev::Launch> launch)
      : track_(std::move(track)), launch_(std::move(launch)) {}
  void posted();
  /// Call this once, when the message has ended.
  void ended() { track_->record(std::move(launch_), posted_); }

 private:
  const std::shared_ptr<MessageTrack> track_;
  std::unique_ptr<const vdev::Launch> launch_;
  std::int64_t posted_ = 0;
};

/// The tracks of the messages of one device. Thread-safe.
class MessageTracks {
 public:
  MessageTracks(int card, const Communicator& communicator)
      : card_(card), group_(communicator.name()), names_(communicator.names()) {}
  /// Returns what the calling thread launches now, under its label. `peer` is -1 for any rank.
  std::shared_ptr<MessageActivity> launch(bool sends, int peer);

 private:
  const int card_;  // -1 for the CPU
  const std::string group_;
  const RankNames names_;
  std::mutex mutex_;
  std::map<std::pair<bool, int>, std::shared_ptr<MessageTrack>> tracks_;
};

}  // namespace vccl
