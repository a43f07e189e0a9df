#include "transport/remote/host_ring.hpp"

#include <algorithm>

namespace vccl {

bool RemoteHostRing::fits(const RingOrder& order) {
  const std::size_t ranks = order.ranks_of_host(0).size();
  if (order.host_count() == 1 || ranks == 1) return false;
  for (int host = 1; host < order.host_count(); ++host) {
    if (order.ranks_of_host(host).size() != ranks) return false;
  }
  return true;
}

RemoteHostRing::RemoteHostRing(const Group& group, const CurrentOperation& operation,
                               FailureChannel& failures, RemoteLinks* ring)
    : ring_(ring), links_(group, operation, failures, "across") {}

void RemoteHostRing::connect(const RingOrder& order, Meeting& meeting, const LinkSettings& settings) {
  const int own = links_.group().rank;
  size_ = order.host_count();
  position_ = order.host_of(own);
  const std::vector<int>& here = order.ranks_of_host(position_);
  const auto place = static_cast<std::size_t>(std::find(here.begin(), here.end(), own) - here.begin());
  const auto neighbour = [&](int host) { return order.ranks_of_host((host + size_) % size_)[place]; };
  links_.connect(meeting, neighbour(position_ - 1), neighbour(position_ + 1), settings);
  right_.emplace(links_);
  left_.emplace(links_);
}

bool RemoteHostRing::all(bool own) {
  const auto pass_on = [&](bool value) {
    *right_->reserve() = static_cast<std::byte>(value);
    right_->commit(1);
  };
  pass_on(own);
  bool result = own;
  for (int step = 1; step < size_; ++step) {
    const bool theirs = *left_->take_committed(1) != std::byte{0};
    left_->release();
    result = result && theirs;
    if (step < size_ - 1) pass_on(theirs);
  }
  // The ring of all ranks compares the calls of neighbouring hosts.
  if (ring_) ring_->match();
  return result;
}

}  // namespace vccl
