#include "transport/links/host_ring.hpp"

#include <bit>

#include "base/text.hpp"

namespace vccl {

RemoteHostRing::RemoteHostRing(const Group& group, const CurrentOperation& operation,
                               FailureChannel& failures, const RingOrder& order, bool mappable,
                               RemoteLinks* ring)
    : order_(order),
      mappable_(mappable),
      position_(order.host_of(group.rank)),
      place_(order.place_of(group.rank)),
      ring_of_all_(ring) {
  if (order.ranks().size() == static_cast<std::size_t>(order.host_count())) {
    leaps_.push_back(ring);
  } else if (place_ < order.least_ranks()) {
    leaps_.push_back(&own_.emplace_back(group, operation, failures, "across"));
  }
  for (int leap = 1; leads() && leap < leaps(); ++leap)
    leaps_.push_back(&own_.emplace_back(group, operation, failures, base::text("leap", leap)));
}

void RemoteHostRing::connect(Meeting& meeting, const LinkSettings& settings) {
  for (std::size_t leap = 0; leap < leaps_.size(); ++leap) {
    const int far = 1 << leap;
    const auto neighbour = [&](int step) {
      return order_.ranks_of_host((position_ + step + size()) % size())[static_cast<std::size_t>(place_)];
    };
    if (leaps_[leap] != ring_of_all_)
      leaps_[leap]->connect(meeting, neighbour(-far), neighbour(far), settings);
    ends_.emplace_back(*leaps_[leap]);
  }
}

void RemoteHostRing::watch_all() {
  std::vector<RemoteLinks*> all;
  if (ring_of_all_) all.push_back(ring_of_all_);
  each_own([&](RemoteLinks& links) { all.push_back(&links); });
  for (RemoteLinks* links : all)
    for (RemoteLinks* others : all)
      if (links != others) links->also_watch(*others);
}

std::optional<RankEnd> RemoteHostRing::end_of_own_peer(int rank) noexcept {
  std::optional<RankEnd> end;
  each_own([&](RemoteLinks& links) {
    if (!end) end = links.end_of_peer(rank);
  });
  return end;
}

// A leap is announced on with what goes there. Where not all leaders send something, neighbours on the ring
// also tell each other at once. So no host can be ahead of another by more operations than there are hosts
// between them, nor end one that its neighbours have not begun.
void RemoteHostRing::begin(Route route) {
  announced_on_ = nullptr;
  if (route == Route::ring) {
    announced_on_ = ring_of_all_;
  } else if (!leaps_.empty() && (route == Route::host_rings || (route == Route::some_leaps && leads()))) {
    announced_on_ = leaps_[0];
  }
  if (announced_on_) announced_on_->begin();
  if (route == Route::ring) return;
  for (RemoteLinks* links : leaps_)
    if (links != announced_on_ && leads()) links->begin_with_block();
}

void RemoteHostRing::match() {
  if (announced_on_) announced_on_->match();
}

void RemoteHostRing::drain() {
  for (Ends& ends : ends_) ends.right.drain();
}

int RemoteHostRing::leaps() const {
  return std::bit_width(static_cast<unsigned>(size() - 1));
}

bool RemoteHostRing::all(bool own) {
  // Each step doubles how many hosts the value speaks for. The last one may count some hosts twice, which
  // does not change it.
  for (int leap = 0; leap < leaps(); ++leap) {
    *right(leap).reserve() = static_cast<std::byte>(own);
    right(leap).commit(1);
    own = *left(leap).take_committed(1) != std::byte{0} && own;
    left(leap).release();
  }
  return own;
}

}  // namespace vccl
