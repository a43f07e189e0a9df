#include "transport/remote/host_ring.hpp"

namespace vccl {

RemoteHostRing::RemoteHostRing(const Group& group, const CurrentOperation& operation,
                               FailureChannel& failures, const RingOrder& order, bool mappable,
                               RemoteLinks* ring)
    : order_(order), mappable_(mappable), position_(order.host_of(group.rank)) {
  if (order.ranks().size() == static_cast<std::size_t>(order.host_count())) {
    links_ = ring;
  } else if (order.place_of(group.rank) < order.least_ranks()) {
    links_ = &own_.emplace(group, operation, failures, "across");
  }
}

void RemoteHostRing::connect(Meeting& meeting, const LinkSettings& settings) {
  if (own_) {
    const auto place = static_cast<std::size_t>(order_.place_of(own_->group().rank));
    const auto neighbour = [&](int step) {
      return order_.ranks_of_host((position_ + step + size()) % size())[place];
    };
    own_->connect(meeting, neighbour(-1), neighbour(1), settings);
  }
  if (!links_) return;
  right_.emplace(*links_);
  left_.emplace(*links_);
}

bool RemoteHostRing::all(bool own) {
  const auto pass_on = [&](bool value) {
    *right_->reserve() = static_cast<std::byte>(value);
    right_->commit(1);
  };
  pass_on(own);
  bool result = own;
  for (int step = 1; step < size(); ++step) {
    const bool theirs = *left_->take_committed(1) != std::byte{0};
    left_->release();
    result = result && theirs;
    if (step < size() - 1) pass_on(theirs);
  }
  return result;
}

}  // namespace vccl
