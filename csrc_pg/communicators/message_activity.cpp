#include "csrc_pg/communicators/message_activity.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace vccl {

void MessageTrack::record(std::unique_ptr<const vdev::Launch> launch, std::int64_t posted) {
  std::lock_guard lock(mutex_);
  const std::int64_t end = base::monotonic_ns();
  vdev::record_run({std::move(launch), std::max(posted, last_end_), end});
  last_end_ = end;
}

void MessageActivity::posted() {
  posted_ = base::monotonic_ns();
}

std::shared_ptr<MessageActivity> MessageTracks::launch(bool sends, int peer) {
  std::lock_guard lock(mutex_);
  auto& track = tracks_[{sends, peer}];
  if (!track) {
    const std::string other = peer < 0 ? "any rank" : base::text("rank ", names_.in_job(peer));
    track = std::make_shared<MessageTrack>(
        vdev::Lane{card_, vdev::Lane::kNoStream,
                   base::text("vccl ", sends ? "send to " : "receive from ", other, " in ", group_)});
  }
  return std::make_shared<MessageActivity>(track, vdev::make_launch(track->lane()));
}

}  // namespace vccl
