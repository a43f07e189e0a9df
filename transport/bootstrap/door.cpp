#include "transport/bootstrap/door.hpp"

#include <algorithm>
#include <vector>

#include "base/periods.hpp"
#include "base/text.hpp"
#include "transport/bootstrap/rank_record.hpp"
#include "transport/interruption_check.hpp"

namespace vccl {
namespace {

// How soon the leader looks at its door again if somebody has just come: strangers fill the queue anew in
// about that time, and ranks get in while it is emptied.
constexpr Milliseconds kBusyDoor{20};
// How many processes of this user that are no ranks may be guests and say nothing. Each takes a descriptor.
constexpr std::size_t kStrangers = 64;

}  // namespace

Milliseconds Door::attend(const Deadline& until) {
  std::vector<const Channel*> channels;
  for (const Guest& guest : guests_) channels.push_back(&guest.channel);
  wait_for_any(listener_, channels, until);
  throw_if_interrupted("it waited for the ranks of its host");
  const std::uint64_t turned_away = listener_.turned_away();
  std::vector<Channel> arrived = listener_.accept(kStrangers);
  const bool busy = !arrived.empty() || listener_.turned_away() > turned_away;
  for (Channel& channel : arrived) guests_.push_back({std::move(channel)});
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const bool leaves = guest->channel.ready() && !hear_(*guest);
    guest = leaves ? guests_.erase(guest) : std::next(guest);
  }
  // The guest that has said nothing for longest leaves. A rank says who it is soon after it has connected.
  const auto is_silent = [](const Guest& guest) { return guest.rank < 0; };
  while (guests_.size() > ranks_ + kStrangers) guests_.erase(std::ranges::find_if(guests_, is_silent));
  return busy ? kBusyDoor : base::kMeetingPeriod;
}

std::string Door::complaint(const std::string& leader) const {
  if (listener_.turned_away() == 0) return "";
  return base::text(", and ", leader, " ", listener_.turned_away_text(), ", which may have kept ranks away");
}

}  // namespace vccl
