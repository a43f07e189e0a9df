#include "transport/state/ring_order.hpp"

#include <algorithm>

namespace vccl {

RingOrder::RingOrder(std::vector<std::vector<int>> hosts, int rank) : hosts_(std::move(hosts)) {
  for (const auto& ranks : hosts_) ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
  host_of_.resize(ranks_.size());
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    for (int other : hosts_[host]) host_of_.at(static_cast<std::size_t>(other)) = static_cast<int>(host);
  }
  while (rank_at(position_) != rank) ++position_;
}

int RingOrder::place_of(int rank) const {
  const std::vector<int>& here = ranks_of_host(host_of(rank));
  return static_cast<int>(std::find(here.begin(), here.end(), rank) - here.begin());
}

int RingOrder::least_ranks() const {
  std::size_t least = ranks_.size();
  for (const auto& ranks : hosts_) least = std::min(least, ranks.size());
  return static_cast<int>(least);
}

}  // namespace vccl
